"""Tasks that only take time, on a clock of the test's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from yard_agent.keeper_client import TaskLaunch, TaskState, TaskStatus
from yard_agent.simulated_executor import SimulatedExecutor


class HandClock:
    """Time moves when the test says so; sleepers wake once it has passed."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._moved = asyncio.Condition()

    def now(self) -> datetime:
        return self._now

    async def sleep(self, seconds: float) -> None:
        until = self._now + timedelta(seconds=seconds)
        async with self._moved:
            await self._moved.wait_for(lambda: self._now >= until)

    async def advance(self, seconds: float) -> None:
        async with self._moved:
            self._now += timedelta(seconds=seconds)
            self._moved.notify_all()


def launch(name: str) -> TaskLaunch:
    return TaskLaunch(name, ("train",), {}, None, "/no/file/is/made")


@asynccontextmanager
async def served(executor: SimulatedExecutor) -> AsyncIterator[AsyncIterator[TaskStatus]]:
    running = asyncio.create_task(executor.run())
    try:
        async with asyncio.timeout(10):
            yield executor.changes()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_tasks_end_in_turn_when_their_time_is_over() -> None:
    clock = HandClock()
    executor = SimulatedExecutor(clock, run_seconds=10, exit_code=3)
    async with served(executor) as changes:
        for name in ("a", "b"):
            assert (await executor.start(launch(name))).state is TaskState.RUNNING
            assert await anext(changes) == TaskStatus(name, TaskState.RUNNING)
            await clock.advance(4)
        await clock.advance(2)
        assert await anext(changes) == TaskStatus("a", TaskState.EXITED, exit_code=3, reason="exit_code", emptied=True)
        assert [status.state for status in await executor.statuses()] == [TaskState.EXITED, TaskState.RUNNING]
        await clock.advance(4)
        assert (await anext(changes)).allocation_id == "b"
        await executor.start(launch("c"))
        await anext(changes)
        await clock.advance(10)
        assert (await anext(changes)).state is TaskState.EXITED, "the loop goes on after it had nothing to do"


async def test_without_run_time_a_task_ends_at_once_and_is_never_run_again() -> None:
    executor = SimulatedExecutor(HandClock(), run_seconds=0)
    async with served(executor) as changes:
        for _ in range(2):
            assert (await executor.start(launch("a"))).exit_code == 0
        await executor.start(launch("b"))
        seen = [await anext(changes) for _ in range(4)]
        assert [(status.allocation_id, status.state.value) for status in seen] == [
            ("a", "running"), ("a", "exited"), ("b", "running"), ("b", "exited"),
        ]  # fmt: skip
        await executor.forget("a")
        await executor.forget("a")
        assert [status.allocation_id for status in await executor.statuses()] == ["b"]


async def test_a_stopped_task_ends_by_the_signal_and_only_once() -> None:
    clock = HandClock()
    executor = SimulatedExecutor(clock, run_seconds=10)
    async with served(executor) as changes:
        await executor.start(launch("a"))
        stopped = await executor.stop("a", grace_seconds=30)
        assert stopped == TaskStatus("a", TaskState.EXITED, signal=15, reason="signal", emptied=True)
        assert await executor.stop("b", grace_seconds=30) is None
        await clock.advance(10)
        await executor.start(launch("c"))
        seen = [await anext(changes) for _ in range(3)]
        assert [(status.allocation_id, status.state.value) for status in seen] == [
            ("a", "running"), ("a", "exited"), ("c", "running"),
        ]  # fmt: skip
