"""Scopes: one owner, terms that only rise, and a ledger clock that never stands still or goes back."""

import asyncio
import itertools
from datetime import timedelta

import pytest
import sqlalchemy as sa

from support.contract import EFFECTS, effects
from support.virtual_clock import VirtualClock
from yard_domain.errors import Conflict, Fenced
from yard_store.unit_of_work import Ownership, Store


async def test_taking_a_scope_raises_its_term(store: Store, second_store: Store) -> None:
    assert await store.take("pool", "one") == Ownership("pool", 1)
    assert await second_store.take("pool", "two") == Ownership("pool", 2)
    assert await store.take("pool", "one") == Ownership("pool", 3)
    assert await store.take("other", "one") == Ownership("other", 1)


async def test_an_owner_that_was_overtaken_is_fenced_and_changes_nothing(store: Store, second_store: Store) -> None:
    old = await store.take("pool", "one")
    new = await second_store.take("pool", "two")
    with pytest.raises(Fenced, match="term 2"):
        async with store.unit_of_work() as uow:
            await uow.connection.execute(sa.insert(EFFECTS).values(key="zombie", n=1))
            await uow.fence(old)
    async with second_store.unit_of_work() as uow:
        await uow.fence(new)
        await uow.connection.execute(sa.insert(EFFECTS).values(key="owner", n=1))
    assert await effects(store) == [("owner", 1)]


async def test_a_scope_that_was_never_taken_has_no_owner(store: Store) -> None:
    with pytest.raises(Fenced):
        async with store.unit_of_work() as uow:
            await uow.fence(Ownership("pool", 1))


async def test_who_takes_over_waits_for_the_owners_open_transaction(store: Store, second_store: Store) -> None:
    """Its effects are done under its own term: they are in before the next term begins."""
    old = await store.take("pool", "one")
    async with store.unit_of_work() as uow:
        await uow.fence(old)
        taking = asyncio.create_task(second_store.take("pool", "two"))
        await uow.connection.execute(sa.insert(EFFECTS).values(key="owner", n=1))
        async with second_store.reading() as connection:  # the second one had its chance to overtake
            term = await connection.scalar(sa.select(store.tables.ownership.c.term))
        assert (term, taking.done()) == (1, False)
    assert (await taking).term == 2
    assert await effects(store) == [("owner", 1)]


async def test_ledger_time_strictly_rises_whatever_the_clock_does(timed_store: Store, clock: VirtualClock) -> None:
    await timed_store.take("pool", "one")
    times = []
    for step in (0, 1, -3600, 0, 0.000001, 7200, -7200, -1e6):
        clock.advance(step)
        async with timed_store.unit_of_work() as uow:
            times += [await uow.ledger_time("pool"), await uow.ledger_time("pool")]
    assert all(later > earlier for earlier, later in itertools.pairwise(times))
    assert times[:2] == [times[0], times[0] + timedelta(microseconds=1)]


async def test_ledger_time_is_the_clock_when_the_clock_goes_on(timed_store: Store, clock: VirtualClock) -> None:
    await timed_store.take("pool", "one")
    for _ in range(3):
        clock.advance(5)
        async with timed_store.unit_of_work() as uow:
            assert await uow.ledger_time("pool") == clock.now()


async def test_ledger_time_goes_on_under_the_next_owner(
    timed_store: Store, clock: VirtualClock, second_store: Store
) -> None:
    clock.advance(timedelta(days=36500).total_seconds())  # the first owner's clock was far ahead
    await timed_store.take("pool", "one")
    async with timed_store.unit_of_work() as uow:
        first = await uow.ledger_time("pool")
    await second_store.take("pool", "two")
    async with second_store.unit_of_work() as uow:
        assert await uow.ledger_time("pool") == first + timedelta(microseconds=1)


async def test_ledger_time_of_a_failed_unit_of_work_does_not_count(timed_store: Store, clock: VirtualClock) -> None:
    await timed_store.take("pool", "one")
    with pytest.raises(LookupError):
        async with timed_store.unit_of_work() as uow:
            await uow.ledger_time("pool")
            raise LookupError
    async with timed_store.unit_of_work() as uow:
        assert await uow.ledger_time("pool") == clock.now()


async def test_a_scope_without_an_owner_has_no_ledger_time(store: Store) -> None:
    with pytest.raises(Conflict):
        async with store.unit_of_work() as uow:
            await uow.ledger_time("pool")
