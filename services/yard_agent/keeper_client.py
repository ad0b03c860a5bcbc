"""The agent's side of the keeper: find it or start it, talk to it, and outlive its death."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from yard_domain.errors import Permanent, Retryable

PROTOCOL_VERSION = 1
_MAIN = Path(__file__).parent / "keeper" / "main.py"
_LINE_LIMIT_BYTES = 64 << 20
_SOCKET_PATH_BYTES = 100
_ALREADY_RUNNING = 3
_LONGEST_PAUSE_SECONDS = 2.0


class TaskState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """What is run: exactly `env`, in `workdir` (None: `/`), output of both streams appended to `output_path`."""

    allocation_id: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    workdir: str | None
    output_path: str


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. `reason` is set once exited, a code of `yard_domain.reasons`; `exit_code` goes with `exit_code`,
    `signal` with `signal`. `emptied`: no process of its tree is left."""

    allocation_id: str
    state: TaskState
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    detail: str | None = None
    emptied: bool = False


class KeeperUnavailable(Retryable):
    """The keeper cannot be started, or cannot do this now."""


class KeeperClient:
    """`run` holds the connection; calls wait for it, and are made again when the keeper died over them.

    That is safe for `start` too: the keeper's log knows an allocation before anything of it runs, so a second start
    answers with what became of the first. After every (re)connection `changes` repeats the status of every task.
    `on_lost` is told each time why there is no keeper.
    """

    def __init__(
        self,
        *,
        socket_path: Path,
        log_path: Path,
        stderr_path: Path,
        on_lost: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        sweep_grace_seconds: float = 2.0,
    ) -> None:
        self._socket_path = socket_path
        self._stderr_path = stderr_path
        self._on_lost = on_lost
        self._environment = dict(environment or {})
        self._command = (python, "-I", "-S", "-X", "utf8", str(_MAIN), "--socket", str(socket_path))
        self._command += ("--log", str(log_path), "--sweep-grace", str(sweep_grace_seconds))
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_call = 0
        self._changes: asyncio.Queue[TaskStatus] = asyncio.Queue()
        self.keeper_pid: int | None = None

    async def run(self) -> None:
        """Keep connected until cancelled."""
        pause = 0.02
        while True:
            try:
                reader, writer = await self._connect()
                try:
                    await self._greet(reader, writer)
                    pause = 0.02
                    await self._read(reader)
                finally:
                    self._disconnect(writer)
            except (OSError, EOFError, ValueError, KeeperUnavailable) as error:
                self._on_lost(str(error) or type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def start(self, launch: TaskLaunch) -> TaskStatus:
        """Run it, unless this allocation is known already: then nothing runs and its status is the answer.

        Raises Permanent for a launch that no keeper takes.
        """
        answer = await self._call(
            op="start",
            id=launch.allocation_id,
            argv=launch.argv,
            env=launch.env,
            workdir=launch.workdir,
            output_path=launch.output_path,
        )
        return _status(answer["task"])

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus | None:
        """SIGTERM now, SIGKILL for what is left after the grace; a second call can only shorten it. None: unknown."""
        answer = await self._call(op="stop", id=allocation_id, grace_seconds=grace_seconds)
        return _status(answer["task"]) if answer["task"] is not None else None

    async def statuses(self) -> list[TaskStatus]:
        """Every task that was not forgotten."""
        return [_status(task) for task in (await self._call(op="list"))["tasks"]]

    async def forget(self, allocation_id: str) -> None:
        """Drop an ended and emptied task; from here on only the caller can know that it ran. Raises KeeperUnavailable
        while it has not ended and emptied."""
        await self._call(op="forget", id=allocation_id)

    async def shutdown_if_idle(self) -> bool:
        """True: no task was running or emptying, and the keeper leaves."""
        return bool((await self._call(op="shutdown"))["closing"])

    async def changes(self) -> AsyncIterator[TaskStatus]:
        """Every change, for one reader. A status may come again and may skip steps; it never goes back."""
        while True:
            yield await self._changes.get()

    def waiting_changes(self) -> list[TaskStatus]:
        """What `changes` would give at once."""
        return [self._changes.get_nowait() for _ in range(self._changes.qsize())]

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._open()
        except (FileNotFoundError, ConnectionRefusedError):
            await self._launch()
        return await self._open()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with socket_address(self._socket_path) as address:
            return await asyncio.open_unix_connection(address, limit=_LINE_LIMIT_BYTES)

    async def _launch(self) -> None:
        """Returns when a keeper accepts clients. The process started here only forks it and leaves."""
        stderr = os.open(self._stderr_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(stderr).st_size
            launcher = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(stderr)
        code = await launcher.wait()
        if code not in (0, _ALREADY_RUNNING):
            raise KeeperUnavailable(f"the keeper did not start: {self._last_words(before) or f'exit code {code}'}")

    def _last_words(self, offset: int) -> str:
        with open(self._stderr_path, "rb") as file:
            file.seek(offset)
            lines = file.read(65536).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _message(reader)
        if hello.get("version") != PROTOCOL_VERSION:
            raise KeeperUnavailable(f"the keeper speaks version {hello.get('version')}, this agent {PROTOCOL_VERSION}")
        writer.write(b'{"op":"list","n":0}\n')
        while "tasks" not in (message := await _message(reader)):
            self._take(message)
        for task in message["tasks"]:
            self._changes.put_nowait(_status(task))
        self.keeper_pid = hello["keeper"]
        self._writer = writer
        self._connected.set()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            self._take(await _message(reader))

    def _take(self, message: dict[str, Any]) -> None:
        if "push" in message:
            self._changes.put_nowait(_status(message["task"]))
            return
        call = self._calls.pop(message.get("n", 0), None)
        if call is not None and not call.done():
            call.set_result(message)

    def _disconnect(self, writer: asyncio.StreamWriter) -> None:
        self._connected.clear()
        self._writer = None
        writer.close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(ConnectionResetError("the keeper is gone"))

    async def _call(self, **request: Any) -> dict[str, Any]:
        while True:
            await self._connected.wait()
            try:
                answer = await self._call_once(request)
            except ConnectionError:
                continue
            if "error" not in answer:
                return answer
            if answer.get("kind") == "invalid":
                raise Permanent(answer["error"])
            raise KeeperUnavailable(answer["error"])

    async def _call_once(self, request: dict[str, Any]) -> dict[str, Any]:
        writer = self._writer
        if writer is None:
            raise ConnectionResetError
        self._last_call += 1
        number = self._last_call
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            writer.write(json.dumps({**request, "n": number}).encode() + b"\n")
            await writer.drain()
            return await call
        except ConnectionError:
            # A broken pipe shows here before the reader is told; the next call must wait for a new connection.
            if self._writer is writer:
                self._writer = None
                self._connected.clear()
            raise
        finally:
            self._calls.pop(number, None)
            call.cancel()


async def _message(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the keeper is gone")
    return json.loads(line)


@contextmanager
def socket_address(path: Path) -> Generator[str, None, None]:
    """A socket's address holds 107 bytes; through its open folder any path fits."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _status(task: dict[str, Any]) -> TaskStatus:
    return TaskStatus(
        allocation_id=task["allocation_id"],
        state=TaskState(task["state"]),
        pid=task["pid"],
        exit_code=task["exit_code"],
        signal=task["signal"],
        reason=task["reason"],
        detail=task["detail"],
        emptied=task["emptied"],
    )
