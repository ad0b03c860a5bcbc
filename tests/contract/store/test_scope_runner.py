"""The cycles of a scope: run when dirty or due, under one term, and never for nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa

from support.contract import EFFECTS, effects, until
from support.virtual_clock import VirtualClock
from yard_domain.errors import Conflict, Fenced, Retryable
from yard_runtime.cycle import ScopeRunner
from yard_store.unit_of_work import Store, UnitOfWork

Work = Callable[[UnitOfWork, int], Awaitable[bool]]


class Cycles:
    """A cycle that counts: `work(uow, run)` decides; each committed run leaves a row."""

    def __init__(self, work: Work | None = None) -> None:
        self._work = work
        self.started = 0
        self.committed = 0
        self.timers: list[str] = []

    async def __call__(self, uow: UnitOfWork, scope: str) -> bool:
        self.started += 1
        self.timers += [timer.key for timer in await uow.take_due_timers(scope)]
        await uow.connection.execute(sa.insert(EFFECTS).values(key=scope, n=self.started))
        more = await self._work(uow, self.started) if self._work is not None else False
        uow.after_commit(self._count)
        return more

    def _count(self) -> None:
        self.committed += 1

    async def until(self, count: int) -> None:
        await until(lambda: self.committed >= count, f"{count} cycles")


@asynccontextmanager
async def running(store: Store, cycles: Cycles, owner: str = "one") -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(ScopeRunner(store, "pool", owner, cycles).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def rest(store: Store) -> None:
    """Let a runner that would run again do so: units of work take turns, so five of ours let in at least four."""
    for _ in range(5):
        async with store.unit_of_work() as uow:
            await uow.connection.execute(sa.text("SELECT 1"))


async def mark(store: Store, scope: str = "pool") -> None:
    async with store.unit_of_work() as uow:
        uow.mark_dirty(scope)


async def test_it_runs_once_at_the_start_and_then_when_its_scope_is_dirty(store: Store) -> None:
    cycles = Cycles()
    async with running(store, cycles):
        await cycles.until(1)
        await rest(store)
        assert cycles.started == 1
        await mark(store)
        await cycles.until(2)
        await mark(store, "another scope")
        await rest(store)
        assert cycles.started == 2
    assert store.engine.sync_engine.pool.checkedout() == 0


async def test_marks_that_come_during_a_cycle_are_not_lost(store: Store) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def work(_uow: UnitOfWork, run: int) -> bool:
        if run == 1:
            reached.set()
            await go_on.wait()
        return False

    cycles = Cycles(work)
    async with running(store, cycles):
        await reached.wait()
        store.notify_dirty("pool")
        go_on.set()
        await cycles.until(2)


async def test_it_goes_on_at_once_while_there_is_more(store: Store) -> None:
    async def work(_uow: UnitOfWork, run: int) -> bool:
        return run < 4

    cycles = Cycles(work)
    async with running(store, cycles):
        await cycles.until(4)
        await rest(store)
    assert cycles.started == 4


async def test_it_runs_when_its_earliest_timer_is_due(timed_store: Store, clock: VirtualClock) -> None:
    cycles = Cycles()
    async with timed_store.unit_of_work() as uow:
        for seconds in (10, 20):
            uow.set_timer("pool", "deadline", str(seconds), clock.now() + timedelta(seconds=seconds))
    async with running(timed_store, cycles):
        for run, (step, expected) in enumerate([(0, []), (10, ["10"]), (10, ["10", "20"])], start=1):
            if step:
                await clock.someone_sleeps()
                clock.advance(step)
            await cycles.until(run)
            assert cycles.timers == expected
        await rest(timed_store)
    assert cycles.started == 3
    assert clock.sleeps == [10, 10]


async def test_a_timer_set_by_someone_else_is_waited_for(timed_store: Store, clock: VirtualClock) -> None:
    cycles = Cycles()
    async with running(timed_store, cycles):
        await cycles.until(1)
        async with timed_store.unit_of_work() as uow:
            uow.set_timer("pool", "deadline", "a", clock.now() + timedelta(seconds=7))
        await cycles.until(2)
        await clock.someone_sleeps()
        clock.advance(7)
        await cycles.until(3)
    assert cycles.timers == ["a"]


async def test_a_cycle_that_sets_its_timer_anew_does_not_wake_itself(timed_store: Store, clock: VirtualClock) -> None:
    async def work(uow: UnitOfWork, _run: int) -> bool:
        uow.set_timer("pool", "look", "again", uow.now + timedelta(seconds=5))
        return False

    cycles = Cycles(work)
    async with running(timed_store, cycles):
        await clock.someone_sleeps()
        await rest(timed_store)
        assert cycles.started == 1
        clock.advance(5)
        await cycles.until(2)
        await rest(timed_store)
        assert cycles.started == 2


@pytest.mark.parametrize("error", [Retryable, Conflict])
async def test_what_may_succeed_later_is_tried_again_from_the_start(store: Store, error: type[Exception]) -> None:
    async def work(_uow: UnitOfWork, run: int) -> bool:
        if run <= 3:
            raise error("not now")
        return False

    cycles = Cycles(work)
    async with running(store, cycles) as task:
        await cycles.until(1)
        await rest(store)
        assert not task.done()
    assert cycles.started == 4
    assert await effects(store) == [("pool", 4)]


@pytest.mark.parametrize("error", [Retryable, Conflict])
async def test_tries_back_off(timed_store: Store, clock: VirtualClock, error: type[Exception]) -> None:
    async def work(_uow: UnitOfWork, run: int) -> bool:
        raise error("never")

    async with running(timed_store, Cycles(work)):
        for _ in range(10):
            await clock.someone_sleeps()
            clock.advance(clock.sleeps[-1])
    assert clock.sleeps[:3] == [0.02, 0.04, 0.08]
    assert max(clock.sleeps) == 2.0


async def test_any_other_error_ends_the_runner(store: Store) -> None:
    async def work(_uow: UnitOfWork, _run: int) -> bool:
        raise ZeroDivisionError

    async with running(store, Cycles(work)) as task:
        with pytest.raises(ZeroDivisionError):
            await task
    assert await effects(store) == []


async def test_a_runner_that_ended_listens_no_more(store: Store) -> None:
    cycles = Cycles()
    runner = ScopeRunner(store, "pool", "one", cycles)
    task = asyncio.create_task(runner.run())
    await cycles.until(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="not in list"):
        store.off_dirty(runner.mark_dirty)


async def test_an_owner_that_was_overtaken_stops_and_leaves_nothing(store: Store, second_store: Store) -> None:
    cycles = Cycles()
    async with running(store, cycles) as task:
        await cycles.until(1)
        await second_store.take("pool", "two")
        await mark(store)
        with pytest.raises(Fenced, match="term 2"):
            await task
    assert cycles.started == 1, "it did not even decide"
    assert await effects(store) == [("pool", 1)]
