"""Tasks that only take time: no processes and no files, for benchmarks of everything around them."""

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

from yard_agent.keeper_client import TaskLaunch, TaskState, TaskStatus
from yard_store.ports import Clock


class SimulatedExecutor:
    """Every task runs `run_seconds` and exits with `exit_code`. It knows nothing of an earlier agent's tasks.

    All tasks take the same time, so they end in the order in which they began: one queue, one waiting loop.
    """

    def __init__(self, clock: Clock, run_seconds: float, exit_code: int = 0) -> None:
        self._clock = clock
        self._run_time = timedelta(seconds=run_seconds)
        self._exit_code = exit_code
        self._tasks: dict[str, TaskStatus] = {}
        self._due: deque[tuple[datetime, str]] = deque()
        self._some_due = asyncio.Event()
        self._changes: asyncio.Queue[TaskStatus] = asyncio.Queue()

    async def run(self) -> None:
        while True:
            await self._some_due.wait()
            while self._due:
                due, allocation_id = self._due[0]
                remaining = (due - self._clock.now()).total_seconds()
                if remaining > 0:
                    await self._clock.sleep(remaining)
                    continue
                self._due.popleft()
                self._end(allocation_id, reason="exit_code", exit_code=self._exit_code)
            self._some_due.clear()

    async def start(self, launch: TaskLaunch) -> TaskStatus:
        allocation_id = launch.allocation_id
        if allocation_id not in self._tasks:
            self._change(TaskStatus(allocation_id, TaskState.RUNNING))
            if self._run_time:
                self._due.append((self._clock.now() + self._run_time, allocation_id))
                self._some_due.set()
            else:
                self._end(allocation_id, reason="exit_code", exit_code=self._exit_code)
        return self._tasks[allocation_id]

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus | None:
        self._end(allocation_id, reason="signal", signal=signal.SIGTERM.value)
        return self._tasks.get(allocation_id)

    async def statuses(self) -> list[TaskStatus]:
        return list(self._tasks.values())

    async def forget(self, allocation_id: str) -> None:
        self._tasks.pop(allocation_id, None)

    async def changes(self) -> AsyncIterator[TaskStatus]:
        while True:
            yield await self._changes.get()

    def waiting_changes(self) -> list[TaskStatus]:
        """What `changes` would give at once."""
        return [self._changes.get_nowait() for _ in range(self._changes.qsize())]

    def _end(self, allocation_id: str, *, reason: str, exit_code: int | None = None, signal: int | None = None) -> None:
        task = self._tasks.get(allocation_id)
        if task is None or task.state is TaskState.EXITED:
            return
        self._change(
            replace(task, state=TaskState.EXITED, reason=reason, exit_code=exit_code, signal=signal, emptied=True)
        )

    def _change(self, status: TaskStatus) -> None:
        self._tasks[status.allocation_id] = status
        self._changes.put_nowait(status)
