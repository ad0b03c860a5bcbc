"""Parked keys that somebody decides about: tried again in order and once, or discarded; and what the world is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from support.bus_harness import BusHarness
from support.contract import (
    DEAD,
    ONE,
    TABLES,
    Recorder,
    answers,
    consuming,
    effects,
    event,
    parked,
    partitions,
    read,
    stored_offset,
    until,
)
from yard_bus import dead_letters
from yard_bus.dead_letters import OfKey
from yard_bus.protocol import Record
from yard_domain.errors import Permanent, Retryable
from yard_events.dead_letters import PARKED_TYPE, QUEUED_BEHIND, RESOLVED_TYPE
from yard_runtime.http import install_problem_handlers
from yard_runtime.service import EventService
from yard_store.signals import listen
from yard_store.unit_of_work import Store, UnitOfWork

A = OfKey(ONE.name, 0, "a")
SENT = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("a", 6)]
"""Number 3, at offset 2, fails as long as the handler is broken; 5 and 6, at offsets 4 and 5, queue behind it."""


class Bug:
    """A handler's `before` that refuses number 3, or what `bad` says, until it is fixed."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad or (3,))
        self.says = "this is nonsense"
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, n: int, _uow: UnitOfWork) -> None:
        if n in self.bad:
            self.entered.set()
            await self.go_on.wait()
        if n in self.bad:
            raise Permanent(self.says)

    def fix(self) -> None:
        self.bad.clear()


@asynccontextmanager
async def broken(harness: BusHarness, store: Store) -> AsyncIterator[tuple[Bug, Recorder]]:
    """A consumer in which key `a` is parked, and that goes on."""
    bug = Bug()
    recorder = Recorder(bug)
    await harness.first.bus.publish([event(n, key) for key, n in SENT])
    async with consuming(store, harness.first.bus, {ONE.name: recorder}) as (_, task):
        await until(lambda: offset_is(store, 6), "all are consumed")
        assert await parked(store) == [("a", 2, True), ("a", 4, False), ("a", 5, False)]
        yield bug, recorder
        assert not task.done()


async def offset_is(store: Store, offset: int) -> bool:
    return await stored_offset(store) == offset


async def nothing_is_parked(store: Store) -> bool:
    return not await parked(store)


async def retry(store: Store, key: OfKey = A) -> int:
    async with store.unit_of_work() as uow:
        return await dead_letters.request_retry(uow, TABLES, key)


async def discard(store: Store, offset: int, by: str | None = None) -> bool:
    async with store.unit_of_work() as uow:
        return await dead_letters.discard(uow, TABLES, A, offset, by=by)


async def error_at(store: Store, offset: int) -> str | None:
    async with store.reading() as connection:
        row = await dead_letters.show_parked(connection, TABLES, ONE.name, 0, offset)
    assert row is not None
    return row["error"]


async def told(harness: BusHarness, count: int) -> list[Record]:
    """The first `count` records of the dead-letter topic, and a proof that there are no more."""
    await harness.flush()
    await harness.first.bus.publish([event(-1, topic=DEAD.name)])
    async with harness.first.bus.session(None, [DEAD.name]) as session:
        [ref] = await partitions(session)
        found = await read(session, ref, count + 1)
    assert found[-1].headers["ce_id"] == "evt-a-1"
    return found[:-1]


async def test_after_the_handler_was_fixed_all_of_the_key_is_handled_in_order_and_once(
    bus_harness: BusHarness, store: Store
) -> None:
    async with broken(bus_harness, store) as (bug, recorder):
        bug.fix()
        assert await retry(store) == 3
        await recorder.until(3, 5, 6)
        await bus_harness.first.bus.publish([event(7), event(8, "b"), event(9)])
        await recorder.until(7, 8, 9)
    assert await effects(store) == [
        ("a", 1), ("b", 2), ("b", 4), ("a", 3), ("a", 5), ("a", 6), ("a", 7), ("b", 8), ("a", 9)
    ]  # fmt: skip
    assert await answers(bus_harness, 9) == [1, 2, 4, 3, 5, 6, 7, 8, 9]
    assert await parked(store) == []


async def test_what_fails_again_stays_parked_with_the_new_error_and_others_flow(
    bus_harness: BusHarness, store: Store
) -> None:
    async with broken(bus_harness, store) as (bug, recorder):
        bug.says = "this is still nonsense"
        await retry(store)

        async def has_the_new_error() -> bool:
            return await error_at(store, 2) == "Permanent: this is still nonsense"

        await until(has_the_new_error, "it failed again")
        await bus_harness.first.bus.publish([event(7), event(8, "b")])
        await recorder.until(8)
        assert await parked(store) == [("a", 2, True), ("a", 4, False), ("a", 5, False), ("a", 6, False)]
        bug.fix()
        await retry(store)
        await recorder.until(3, 5, 6, 7)
    assert [n for key, n in await effects(store) if key == "a"] == [1, 3, 5, 6, 7]


async def test_it_stops_at_the_next_that_fails(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (bug, recorder):
        bug.bad = {5}
        await retry(store)
        await recorder.until(3)

        async def has_an_error() -> bool:
            return await error_at(store, 4) is not None

        await until(has_an_error, "number 5 failed")
        assert await parked(store) == [("a", 4, True), ("a", 5, False)]
    assert [n for key, n in await effects(store) if key == "a"] == [1, 3]


async def test_records_that_arrive_meanwhile_come_after_those_that_wait(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (bug, recorder):
        bug.entered.clear()
        bug.go_on.clear()
        await retry(store)
        await bug.entered.wait()
        await bus_harness.first.bus.publish([event(7), event(8, "b"), event(9)])
        bug.fix()
        bug.go_on.set()
        await recorder.until(3, 5, 6, 7, 8, 9)
    assert [n for key, n in await effects(store) if key == "a"] == [1, 3, 5, 6, 7, 9]
    assert len(await effects(store)) == 9


async def test_what_may_succeed_later_is_retried_in_place(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (bug, recorder):
        tries = 0

        async def busy(n: int, _uow: UnitOfWork) -> None:
            nonlocal tries
            tries += n == 3
            if n == 3 and tries < 4:
                raise Retryable("not now")

        recorder._before = busy
        bug.fix()
        await retry(store)
        await recorder.until(3, 5, 6)
    assert (tries, await parked(store)) == (4, [])


async def test_without_the_first_the_others_are_tried(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (_, recorder):
        assert await discard(store, 2)
        assert not await discard(store, 2)
        await recorder.until(5, 6)
        await bus_harness.first.bus.publish([event(7)])
        await recorder.until(7)
    assert [n for key, n in await effects(store) if key == "a"] == [1, 5, 6, 7]


async def test_the_last_one_discarded_the_key_flows_again(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (_, recorder):
        for offset in (5, 4, 2):
            await discard(store, offset)
        await until(lambda: nothing_is_parked(store), "all are discarded")
        await bus_harness.first.bus.publish([event(7)])
        await recorder.until(7)
    assert [n for key, n in await effects(store) if key == "a"] == [1, 7]


async def test_one_that_is_discarded_while_it_is_tried_frees_those_behind_it(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    """The retry's own word that it failed again must not undo what the discarding asked for."""
    async with broken(bus_harness, store) as (bug, recorder), hearing(store, second_store) as elsewhere:
        bug.entered.clear()
        bug.go_on.clear()
        await retry(store)
        await bug.entered.wait()
        discarding = asyncio.create_task(discard(elsewhere, 2))
        await until(lambda: waits_for_a_lock(store), "the discarding waits for the retry")
        bug.go_on.set()
        assert await discarding
        await recorder.until(5, 6)
    assert [n for key, n in await effects(store) if key == "a"] == [1, 5, 6]


async def waits_for_a_lock(store: Store) -> bool:
    async with store.engine.connect() as connection:
        found = await connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE FROM%parked%' "
            "AND datname = current_database()"
        )
        return found.scalar_one() > 0


@asynccontextmanager
async def hearing(store: Store, second_store: Store) -> AsyncIterator[Store]:
    """Who decides, and is heard by `store`: another instance where the bus has several, else another part of it."""
    if not store.shared:
        yield store.sibling()
        return
    listening = asyncio.Event()

    def heard(kind: str, key: str) -> None:
        store.heard(kind, key)
        listening.set()

    task = asyncio.create_task(listen(store.engine, store.schema, store.name, heard))
    await listening.wait()
    try:
        yield second_store
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_decision_made_elsewhere_wakes_the_active_instance(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    async with broken(bus_harness, store) as (bug, recorder), hearing(store, second_store) as elsewhere:
        bug.fix()
        assert await retry(elsewhere) == 3
        await recorder.until(3, 5, 6)
    assert await parked(store) == []


async def test_any_instance_takes_decisions_where_instances_hear_of_one_another(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    """Elsewhere one that is not active says so, and takes none that nobody would hear of."""
    bug = Bug()
    recorder = Recorder(bug)
    services = [
        EventService("contract", one, runtime.bus, name, {ONE.name: recorder})
        for one, runtime, name in ((store, bus_harness.first, "one"), (second_store, bus_harness.second, "two"))
    ]
    await bus_harness.first.bus.publish([event(n, key) for key, n in SENT])
    async with running(services):
        await until(lambda: offset_is(store, 6), "all are consumed")
        bug.fix()
        [standby] = [service for service in services if not service.active]
        install_problem_handlers(standby.api())
        transport = httpx.ASGITransport(standby.api())
        async with httpx.AsyncClient(transport=transport, base_url="http://standby") as client:
            assert (await client.get("/dead-letters")).json()["total"] == 3
            asked = await client.post(f"/dead-letters/{ONE.name}/0/4/retry")
        if store.shared:
            assert asked.json() == {"key": "a", "records": 3}
            await recorder.until(3, 5, 6)
            assert not standby.active
        else:
            assert asked.status_code == 503
            assert (await parked(store))[0] == ("a", 2, True)


@asynccontextmanager
async def running(services: list[EventService]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(service.run(lambda: None)) for service in services]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_decision_outlives_a_restart(bus_harness: BusHarness, store: Store, second_store: Store) -> None:
    async with broken(bus_harness, store):
        pass
    assert await retry(store) == 3
    recorder = Recorder()
    async with consuming(second_store, bus_harness.second.bus, {ONE.name: recorder}):
        await recorder.until(3, 5, 6)
        await bus_harness.first.bus.publish([event(7)])
        await recorder.until(7)
    assert recorder.committed == [3, 5, 6, 7]
    assert [n for key, n in await effects(store) if key == "a"] == [1, 3, 5, 6, 7]


async def test_everything_or_one_key_of_all_topics_can_be_retried(bus_harness: BusHarness, store: Store) -> None:
    bug = Bug(1, 2, 3)
    recorder = Recorder(bug)
    await bus_harness.first.bus.publish([event(1, "a"), event(2, "b"), event(3, "c")])
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await until(lambda: offset_is(store, 3), "all are consumed")
        bug.fix()
        async with store.unit_of_work() as uow:
            assert await dead_letters.request_retries(uow, TABLES, key="b") == 1
        await recorder.until(2)
        assert recorder.committed == [2]
        async with store.unit_of_work() as uow:
            assert await dead_letters.request_retries(uow, TABLES) == 2
        await recorder.until(1, 3)
    assert await parked(store) == []


async def test_the_dead_letter_topic_tells_what_was_parked_and_how_it_ended(
    bus_harness: BusHarness, store: Store
) -> None:
    garbage = event(3, value=b"\x00\xffbroken", source="agent/x")
    bug = Bug()
    recorder = Recorder(bug)
    await bus_harness.first.bus.publish([garbage, event(5)])
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await until(lambda: offset_is(store, 2), "both are parked")
        await discard(store, 0, by="alice")
        await recorder.until(5)
    first, second, gone, done = await told(bus_harness, 4)

    assert {record.key for record in (first, second, gone, done)} == {"a"}
    assert [record.headers["yard_dlq_offset"] for record in (first, second, gone, done)] == ["0", "1", "0", "1"]
    assert {record.headers["yard_dlq_topic"] for record in (first, second, gone, done)} == {ONE.name}
    assert [record.type for record in (first, second)] == [PARKED_TYPE] * 2
    assert first.value == b"\x00\xffbroken"
    assert first.headers["yard_dlq_error"].startswith("Permanent: ")
    assert first.headers["yard_dlq_header_ce_source"] == "agent/x"
    assert first.headers["yard_dlq_header_ce_id"] == garbage.id
    assert second.headers["yard_dlq_error"] == QUEUED_BEHIND
    assert [record.type for record in (gone, done)] == [RESOLVED_TYPE] * 2
    assert json.loads(gone.value) == {"outcome": "discarded", "discarded_by": "alice"}
    assert json.loads(done.value) == {"outcome": "handled"}


async def test_a_second_failure_is_told_with_its_error(bus_harness: BusHarness, store: Store) -> None:
    async with broken(bus_harness, store) as (bug, _):
        bug.says = "still"
        await retry(store)

        async def failed() -> bool:
            return await error_at(store, 2) == "Permanent: still"

        await until(failed, "it failed again")
    *_, last = await told(bus_harness, 4)
    assert (last.type, last.headers["yard_dlq_offset"]) == (PARKED_TYPE, "2")
    assert last.headers["yard_dlq_error"] == "Permanent: still"


async def test_a_reader_of_its_own_dead_letters_cannot_make_more_of_them(bus_harness: BusHarness, store: Store) -> None:
    recorder = Recorder(Bug(1))
    await bus_harness.first.bus.publish([event(1, topic=DEAD.name), event(2, topic=DEAD.name)])

    async def both() -> bool:
        return await stored_offset(store, DEAD.name) == 2

    async with consuming(store, bus_harness.first.bus, {DEAD.name: recorder}):
        await until(both, "both are parked")
        await bus_harness.flush()
    assert await parked(store) == [("a", 0, True), ("a", 1, False)]
    assert [record.type for record in await told(bus_harness, 2)] == ["yard.contract.counted.v1"] * 2


@pytest.mark.parametrize("text", ["zero \0 byte", "half \ud800 a pair", "x" * 10_000], ids=["nul", "surrogate", "long"])
async def test_any_error_text_can_be_kept(bus_harness: BusHarness, store: Store, text: str) -> None:
    bug = Bug()
    bug.says = text
    await bus_harness.first.bus.publish([event(3)])
    async with consuming(store, bus_harness.first.bus, {ONE.name: Recorder(bug)}):
        await until(lambda: offset_is(store, 1), "it is parked")
    error = await error_at(store, 0)
    assert error is not None
    assert error.startswith(f"Permanent: {text[:4]}")
    assert len(error) < 2100
