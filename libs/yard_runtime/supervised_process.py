"""One child process of the supervisor: its start, its log, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from yard_runtime import leash
from yard_runtime.process_exit import wait_for_exit
from yard_runtime.stragglers import MARKER, pid_file, write_pid_file

_LOG_LIMIT_BYTES = 20 * 1024 * 1024
_TAIL_BYTES = 8192
_TAIL_LINES = 10


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to keep running. `env` is its whole environment. `ready` is asked again and again after each start
    until it says true; None: ready once started. Standard output and error are appended to `log_path`."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    ready: Callable[[], Awaitable[bool]] | None = None
    stop_grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended: an exit code, or the name of the signal that ended it, or neither if it never started."""

    exit_code: int | None
    signal_name: str | None
    log_lines: tuple[str, ...]
    detail: str = ""


class SupervisedProcess:
    """One run of a spec. It leads a process group of its own, so that Ctrl-C reaches the supervisor alone."""

    def __init__(self, spec: ProcessSpec, run_dir: Path) -> None:
        """Starts it. Raises `OSError` where that is impossible (no such interpreter, log not writable, disk full)."""
        self._log_path = spec.log_path
        self._pid_file = pid_file(run_dir, spec.name)
        with open_log(spec.log_path) as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *spec.argv],
                env={**spec.env, MARKER: str(self._pid_file)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            write_pid_file(self._pid_file, self._popen.pid)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def wait(self) -> ProcessEnd:
        """Wait for its end; then end what is left of its group and remove its pid file."""
        await wait_for_exit(self._popen.pid, self._runs)
        return self._reap()

    def terminate(self) -> None:
        """Ask it, and it alone, to end: its own children are for it to stop in its own order."""
        if self._popen.returncode is None:
            os.kill(self._popen.pid, signal.SIGTERM)

    def kill(self) -> ProcessEnd:
        """End it and its whole group at once."""
        if self._popen.returncode is None:
            self._kill_group()
            # It has the signal; only a process stuck in the kernel (a dead network disk) could keep us here.
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout=5)
        return self._end()

    def log_lines(self) -> tuple[str, ...]:
        """The last lines that it wrote since its start."""
        try:
            with self._log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start if self._log_start <= size else 0, size - _TAIL_BYTES))
                return tuple(log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])
        except FileNotFoundError:
            return ()

    def _runs(self) -> bool:
        """Looks without reaping: as long as the zombie is there nobody else can have its pid, nor its group's."""
        return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _reap(self) -> ProcessEnd:
        self._kill_group()
        self._popen.wait()
        return self._end()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _end(self) -> ProcessEnd:
        self._pid_file.unlink(missing_ok=True)
        status = self._popen.returncode
        if status is None:
            return ProcessEnd(None, None, self.log_lines(), detail="it does not die")
        if status < 0:
            return ProcessEnd(None, signal_name(-status), self.log_lines())
        return ProcessEnd(status, None, self.log_lines())


def open_log(path: Path) -> BufferedWriter:
    """The log, open for appending; what is in it moves to `<name>.1` once it is larger than 20 MiB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; a number without a name (a real-time signal) as `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
