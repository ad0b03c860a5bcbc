"""Timers: rows with a due time, set and taken inside units of work."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from support.contract import TABLES
from support.virtual_clock import VirtualClock
from yard_runtime.service import Runtime
from yard_store.unit_of_work import Store


def later(clock: VirtualClock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


async def taken(store: Store, scope: str = "pool", limit: int = 500) -> list[tuple[str, str]]:
    async with store.unit_of_work() as uow:
        return [(timer.kind, timer.key) for timer in await uow.take_due_timers(scope, limit)]


async def test_a_timer_is_due_at_its_time_and_taken_once(timed_store: Store, clock: VirtualClock) -> None:
    due = later(clock, 10)
    async with timed_store.unit_of_work() as uow:
        uow.set_timer("pool", "deadline", "a", due)
    clock.advance(9.999999)
    assert await taken(timed_store) == []
    clock.advance(0.000001)
    async with timed_store.unit_of_work() as uow:
        [timer] = await uow.take_due_timers("pool")
    assert (timer.scope, timer.kind, timer.key, timer.due_at) == ("pool", "deadline", "a", due)
    assert await taken(timed_store) == []


async def test_a_timer_taken_in_a_unit_of_work_that_fails_is_still_due(timed_store: Store, clock: VirtualClock) -> None:
    async with timed_store.unit_of_work() as uow:
        uow.set_timer("pool", "deadline", "a", clock.now())
    with pytest.raises(LookupError):
        async with timed_store.unit_of_work() as uow:
            assert await uow.take_due_timers("pool")
            raise LookupError
    assert await taken(timed_store) == [("deadline", "a")]


async def test_setting_again_replaces_and_clearing_removes(timed_store: Store, clock: VirtualClock) -> None:
    async with timed_store.unit_of_work() as uow:
        for key in ("postponed", "cleared", "kept", "cleared at once"):
            uow.set_timer("pool", "deadline", key, later(clock, 10))
        uow.clear_timer("pool", "deadline", "cleared at once")
        uow.clear_timer("pool", "deadline", "never set")
    async with timed_store.unit_of_work() as uow:
        uow.set_timer("pool", "deadline", "postponed", later(clock, 20))
        uow.clear_timer("pool", "deadline", "cleared")
    clock.advance(10)
    assert await taken(timed_store) == [("deadline", "kept")]
    clock.advance(10)
    assert await taken(timed_store) == [("deadline", "postponed")]


async def test_timers_come_in_the_order_in_which_they_are_due(timed_store: Store, clock: VirtualClock) -> None:
    async with timed_store.unit_of_work() as uow:
        for seconds, kind, key in [(3, "b", "x"), (1, "z", "x"), (2, "a", "y"), (2, "a", "x"), (0, "m", "m")]:
            uow.set_timer("pool", kind, key, later(clock, seconds))
    clock.advance(3)
    assert await taken(timed_store, limit=2) == [("m", "m"), ("z", "x")]
    assert await taken(timed_store) == [("a", "x"), ("a", "y"), ("b", "x")]


async def test_scopes_and_kinds_are_apart(timed_store: Store, clock: VirtualClock) -> None:
    async with timed_store.unit_of_work() as uow:
        for scope in ("one", "two"):
            for kind in ("p", "q"):
                uow.set_timer(scope, kind, "same", clock.now())
        uow.clear_timer("one", "p", "same")
    assert await taken(timed_store, "one") == [("q", "same")]
    assert await taken(timed_store, "two") == [("p", "same"), ("q", "same")]


async def test_timers_survive_a_restart(timed_store: Store, clock: VirtualClock, second_runtime: Runtime) -> None:
    async with timed_store.unit_of_work() as uow:
        uow.set_timer("pool", "deadline", "a", later(clock, 5))
    clock.advance(5)
    another = replace(second_runtime, clock=clock).store(TABLES, "contract")
    assert await taken(another) == [("deadline", "a")]


async def test_the_next_due_time_counts_what_this_unit_of_work_does(timed_store: Store, clock: VirtualClock) -> None:
    async with timed_store.unit_of_work() as uow:
        assert await uow.next_due("pool") is None
        uow.set_timer("pool", "deadline", "early", later(clock, 10))
        uow.set_timer("pool", "deadline", "late", later(clock, 60))
        uow.set_timer("other", "deadline", "x", later(clock, 1))
    async with timed_store.unit_of_work() as uow:
        assert await uow.next_due("pool") == later(clock, 10)
        uow.set_timer("pool", "deadline", "early", later(clock, 30))
        assert await uow.next_due("pool") == later(clock, 30)
        uow.clear_timer("pool", "deadline", "early")
        assert await uow.next_due("pool") == later(clock, 60)
        uow.set_timer("pool", "deadline", "now", clock.now())
        assert [timer.key for timer in await uow.take_due_timers("pool")] == ["now"]


async def test_a_timer_of_a_failed_unit_of_work_was_never_set(timed_store: Store, clock: VirtualClock) -> None:
    with pytest.raises(LookupError):
        async with timed_store.unit_of_work() as uow:
            uow.set_timer("pool", "deadline", "a", clock.now())
            raise LookupError
    assert await taken(timed_store) == []
