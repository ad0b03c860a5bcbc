"""The unit of work: all of it or nothing, one at a time, and memory follows only what is committed."""

import asyncio
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.bus_harness import PostgresHarness
from support.contract import AT, EFFECTS, ONE, Answer, Counted, contract_store, effects, event, published
from support.severing_proxy import Sever
from yard_domain.errors import Retryable
from yard_events.envelope import from_headers
from yard_runtime.service import Runtime
from yard_store.database_errors import OutcomeUnknown
from yard_store.unit_of_work import Store


async def test_state_events_and_timers_are_one_transaction(runtime: Runtime, store: Store) -> None:
    for fails in (True, False):
        try:
            async with store.unit_of_work() as uow:
                await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=1))
                uow.emit(Answer(n=1))
                uow.set_timer("pool", "deadline", "a", AT)
                if fails:
                    raise LookupError
        except LookupError:
            assert fails
    assert await effects(store) == [("a", 1)]
    assert await published(runtime.bus, 1) == [1]
    async with store.unit_of_work() as uow:
        assert [timer.key for timer in await uow.take_due_timers("pool")] == ["a"]


async def test_an_event_carries_its_cause(runtime: Runtime, store: Store) -> None:
    first = event(1)
    async with store.unit_of_work() as uow:
        uow.emit(Counted(n=2), cause=first)
        uow.emit(Counted(n=3))
        now = uow.now
    async with runtime.bus.session(None, [ONE.name]) as session:
        [ref] = await anext(aiter(session.assignments()))
        caused, uncaused = await session.read(ref, None, 10)
    envelope = from_headers(ONE.name, caused.key, caused.headers, caused.value)
    assert (envelope.causation_id, envelope.correlation_id) == (first.id, first.id)
    assert (envelope.source, envelope.time) == ("yard/contract", now)
    other = from_headers(ONE.name, uncaused.key, uncaused.headers, uncaused.value)
    assert (other.causation_id, other.correlation_id) == (None, None)
    assert other.id != envelope.id


async def test_units_of_work_of_one_instance_never_overlap(store: Store) -> None:
    inside: list[int] = []

    async def work(n: int) -> None:
        async with store.unit_of_work() as uow:
            inside.append(n)
            await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=n))
            assert inside == [n]
            inside.remove(n)

    await asyncio.gather(*(work(n) for n in range(8)))
    assert sorted(n for _, n in await effects(store)) == list(range(8))


async def test_other_instances_do_not_wait(store: Store, second_store: Store) -> None:
    async with store.unit_of_work() as uow, second_store.unit_of_work() as other:
        await uow.connection.execute(sa.insert(EFFECTS).values(key="one", n=1))
        await other.connection.execute(sa.insert(EFFECTS).values(key="two", n=2))
    assert len(await effects(store)) == 2


async def test_a_failed_unit_of_work_lets_the_next_one_in(store: Store) -> None:
    with pytest.raises(LookupError):
        async with store.unit_of_work():
            raise LookupError
    task = asyncio.create_task(_held_open(store))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(20), store.unit_of_work() as uow:
        await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=1))
    assert await effects(store) == [("a", 1)]


async def _held_open(store: Store) -> None:
    async with store.unit_of_work():
        await asyncio.Event().wait()


async def test_memory_and_cycles_are_told_after_the_commit_and_only_then(store: Store) -> None:
    told: list[str] = []
    store.on_dirty(lambda scope: told.append(f"dirty {scope}"))
    with pytest.raises(LookupError):
        async with store.unit_of_work() as uow:
            uow.mark_dirty("pool")
            uow.set_timer("pool", "deadline", "a", AT)
            uow.after_commit(lambda: told.append("committed"))
            raise LookupError
    assert told == []
    async with store.unit_of_work() as uow:
        uow.mark_dirty("pool")
        uow.mark_dirty("pool")
        uow.set_timer("node", "deadline", "a", AT)
        uow.after_commit(lambda: told.append("committed"))
        assert told == []
    assert told == ["committed", "dirty node", "dirty pool"]


async def test_who_asked_for_the_next_due_time_is_not_woken_for_timers_it_set(store: Store) -> None:
    """A cycle that sets its timer at every run would wake itself for ever."""
    told: list[str] = []
    store.on_dirty(told.append)
    async with store.unit_of_work() as uow:
        uow.set_timer("pool", "deadline", "a", AT)
        uow.set_timer("node", "deadline", "a", AT)
        await uow.next_due("pool")
    assert told == ["node"]
    async with store.unit_of_work() as uow:
        uow.mark_dirty("pool")
        await uow.next_due("pool")
    assert told == ["node", "pool"]


@pytest.mark.parametrize("how", list(Sever), ids=lambda how: how.name.lower())
async def test_after_a_lost_commit_cycles_look_but_memory_is_not_told(
    runtime: Runtime, second_runtime: Runtime, store: Store, how: Sever
) -> None:
    told: list[str] = []
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:
        harness = PostgresHarness(runtime, second_runtime, Path(folder))
        async with harness.losing_commits() as (behind, proxy):
            losing = await contract_store(behind)
            losing.on_dirty(told.append)
            with pytest.raises(OutcomeUnknown):
                async with losing.unit_of_work() as uow:
                    await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=1))
                    uow.mark_dirty("pool")
                    uow.after_commit(lambda: told.append("committed"))
                    proxy.sever_next_commit(how)
            assert told == ["pool"]
            async with losing.unit_of_work() as uow:  # and the pool has a connection again
                await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=2))
    assert await effects(store) == ([("a", 1)] if how is Sever.AFTER_COMMIT else []) + [("a", 2)]


async def test_reading_sees_one_snapshot_and_cannot_write(store: Store) -> None:
    async with store.reading() as connection:
        count = sa.select(sa.func.count()).select_from(EFFECTS)
        assert await connection.scalar(count) == 0
        async with store.unit_of_work() as uow:
            await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=1))
        assert await connection.scalar(count) == 0
    assert await effects(store) == [("a", 1)]
    with pytest.raises(Retryable, match="read-only"):
        async with store.reading() as connection:
            await connection.execute(sa.insert(EFFECTS).values(key="a", n=1))
