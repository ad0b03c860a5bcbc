"""Keeps a few processes running, visibly: what dies is restarted, and said so with its cause and last words."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from yard_domain.errors import Retryable
from yard_runtime.process_exit import wait_for_exit
from yard_runtime.supervised_process import ProcessEnd, ProcessSpec, SupervisedProcess
from yard_runtime.supervisor_events import SupervisorEvent, SupervisorEventKind

_READY_POLL_SECONDS = 0.05
_READY_ANSWER_SECONDS = 5.0


class NotReady(Retryable):
    """Something is not ready in time; the message names it and ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between restarts: the first one short, then doubling to the limit; a run of `healthy_seconds` makes the
    next one the first again."""

    first_seconds: float = 0.1
    factor: float = 2.0
    limit_seconds: float = 10.0
    healthy_seconds: float = 10.0

    def pause_seconds(self, failures: int) -> float:
        """After `failures` short runs in a row, the present one not counted."""
        # Bounded before raising to the power: a crash loop of days would overflow.
        return min(self.limit_seconds, self.first_seconds * self.factor ** min(failures, 32))


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """Something that must live but is no child: it is looked at every `interval_seconds`, and where `pid` is given its
    end is noticed at once. `revive` brings it back; an error of it is reported and it is tried again."""

    name: str
    alive: Callable[[], bool]
    revive: Callable[[], Awaitable[object]]
    interval_seconds: float = 0.25
    pid: Callable[[], int | None] | None = None


class _Child:
    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: SupervisedProcess | None = None
        self.is_ready = False
        self.why_not_ready = "it has not started"


class Supervisor:
    """`run` from the thread that the program ends with: the kernel ties the children's lives to the thread that
    started them. `on_event` is called in the event loop and should be quick."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        on_event: Callable[[SupervisorEvent], None],
        *,
        run_dir: Path,
        watches: Sequence[WatchSpec] = (),
        backoff: Backoff | None = None,
    ) -> None:
        """`run_dir` gets `<name>.pid` files; names must differ."""
        names = [spec.name for spec in (*specs, *watches)]
        if len(set(names)) != len(names):
            raise ValueError(f"two supervised processes have the same name: {', '.join(names)}")
        self._children = [_Child(spec) for spec in specs]
        self._watches = tuple(watches)
        self._on_event = on_event
        self._run_dir = run_dir.resolve()
        self._backoff = backoff or Backoff()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Condition()
        self._running = False
        self._finished = asyncio.Event()

    async def run(self) -> None:
        """Start everything and keep it running until `stop` or cancellation; then end it all. Once only."""
        if self._running or self._finished.is_set():
            raise RuntimeError("a supervisor runs once")
        self._running = True
        self._run_dir.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._keep(child)) for child in self._children]
                tasks += [group.create_task(self._watch(watch)) for watch in self._watches]
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
        finally:
            try:
                await self._end_all()
            finally:
                self._running = False
                self._finished.set()
                await self._announce_change()

    async def wait_ready(self, timeout: float) -> None:
        """Return once all children are ready at the same time. Raises `NotReady` after `timeout` seconds, and at once
        when the supervisor ends."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self._finished.is_set() or not self._unready())
        except TimeoutError:
            raise NotReady(self._who_is_not_ready(f"after {timeout:g} s")) from None
        if self._finished.is_set():
            raise NotReady("the supervisor has ended")

    async def stop(self) -> None:
        """End the children in reverse order: SIGTERM, the grace of each, SIGKILL. Returns when all are gone."""
        self._stopping.set()
        if self._running:
            await self._finished.wait()

    # One child

    async def _keep(self, child: _Child) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            pid, end = await self._run_once(child)
            if loop.time() - began >= self._backoff.healthy_seconds:
                failures = 0
            pause_seconds = self._backoff.pause_seconds(failures)
            failures += 1
            kind = SupervisorEventKind.DIED if pid is not None else SupervisorEventKind.NOT_STARTED
            self._emit_end(kind, child, pid, end, restart_in_seconds=pause_seconds)
            await asyncio.sleep(pause_seconds)

    async def _run_once(self, child: _Child) -> tuple[int | None, ProcessEnd]:
        """Start it and wait for its end. The pid is None where it could not be started."""
        try:
            process = SupervisedProcess(child.spec, self._run_dir)
        except OSError as error:
            child.why_not_ready = f"it could not be started: {error}"
            return None, ProcessEnd(None, None, (), detail=str(error))
        child.process = process
        self._emit(SupervisorEvent(SupervisorEventKind.STARTED, child.spec.name, pid=process.pid))
        try:
            async with asyncio.TaskGroup() as group:
                readiness = group.create_task(self._until_ready(child, process.pid))
                end = await process.wait()
                child.process = None
                readiness.cancel()
        finally:
            child.is_ready = False
        child.why_not_ready = f"it ended ({end.signal_name or end.exit_code})"
        return process.pid, end

    async def _until_ready(self, child: _Child, pid: int) -> None:
        child.why_not_ready = "it does not say that it is ready"
        while child.spec.ready is not None:
            try:
                async with asyncio.timeout(_READY_ANSWER_SECONDS):
                    if await child.spec.ready():
                        break
                child.why_not_ready = "it says that it is not ready"
            except Exception as error:  # a probe may fail in any way while a service starts
                child.why_not_ready = f"asking it failed: {error or type(error).__name__}"
            await asyncio.sleep(_READY_POLL_SECONDS)
        child.is_ready = True
        self._emit(SupervisorEvent(SupervisorEventKind.READY, child.spec.name, pid=pid))
        await self._announce_change()

    # One watched process

    async def _watch(self, watch: WatchSpec) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            await self._until_lost(watch)
            self._emit(SupervisorEvent(SupervisorEventKind.LOST, watch.name))
            if loop.time() - began >= self._backoff.healthy_seconds:
                failures = 0
            if failures:
                await asyncio.sleep(self._backoff.pause_seconds(failures - 1))
            while not await self._revived(watch, failures):
                await asyncio.sleep(self._backoff.pause_seconds(failures))
                failures += 1
            failures += 1

    async def _until_lost(self, watch: WatchSpec) -> None:
        while watch.alive():
            pid = watch.pid() if watch.pid is not None else None
            if pid is None:
                await asyncio.sleep(watch.interval_seconds)
                continue
            try:
                async with asyncio.timeout(watch.interval_seconds):
                    await wait_for_exit(pid, watch.alive, watch.interval_seconds)
            except TimeoutError:
                continue

    async def _revived(self, watch: WatchSpec, failures: int) -> bool:
        try:
            await watch.revive()
        except Exception as error:  # whatever keeps it down, the other processes go on
            pause_seconds = self._backoff.pause_seconds(failures)
            self._emit(
                SupervisorEvent(
                    SupervisorEventKind.NOT_REVIVED,
                    watch.name,
                    detail=str(error) or type(error).__name__,
                    restart_in_seconds=pause_seconds,
                )
            )
            return False
        self._emit(SupervisorEvent(SupervisorEventKind.REVIVED, watch.name))
        return True

    # The end

    async def _end_all(self) -> None:
        try:
            for child in reversed(self._children):
                if child.process is not None:
                    await self._end(child, child.process)
        finally:
            # Only after a second cancellation is anything left: no grace any more.
            for child in reversed(self._children):
                if child.process is not None:
                    self._kill(child, child.process)

    async def _end(self, child: _Child, process: SupervisedProcess) -> None:
        self._emit(SupervisorEvent(SupervisorEventKind.STOPPING, child.spec.name, pid=process.pid))
        process.terminate()
        try:
            async with asyncio.timeout(child.spec.stop_grace_seconds):
                end = await process.wait()
        except TimeoutError:
            self._kill(child, process)
            return
        child.process = None
        self._emit_end(SupervisorEventKind.STOPPED, child, process.pid, end)

    def _kill(self, child: _Child, process: SupervisedProcess) -> None:
        child.process = None
        self._emit_end(SupervisorEventKind.KILLED, child, process.pid, process.kill())

    # Telling

    def _emit_end(
        self,
        kind: SupervisorEventKind,
        child: _Child,
        pid: int | None,
        end: ProcessEnd,
        restart_in_seconds: float | None = None,
    ) -> None:
        self._emit(
            SupervisorEvent(
                kind,
                child.spec.name,
                pid=pid,
                exit_code=end.exit_code,
                signal_name=end.signal_name,
                log_lines=end.log_lines,
                restart_in_seconds=restart_in_seconds,
                detail=end.detail,
            )
        )

    def _emit(self, event: SupervisorEvent) -> None:
        try:
            self._on_event(event)
        except OSError:
            # A console that went away (a closed pipe) must not take the services with it.
            return

    async def _announce_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _unready(self) -> list[_Child]:
        return [child for child in self._children if not child.is_ready]

    def _who_is_not_ready(self, when: str) -> str:
        lines: list[str] = []
        for child in self._unready():
            lines.append(f"{child.spec.name} is not ready {when}: {child.why_not_ready}; log: {child.spec.log_path}")
            if child.process is not None:
                lines += [f"  {line}" for line in child.process.log_lines()]
        return "\n".join(lines)
