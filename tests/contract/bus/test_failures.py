"""Handlers that fail and records that cannot be read: order is kept and nothing is dropped silently."""

from collections import Counter

import pytest

from support.bus_harness import BusHarness
from support.contract import (
    ONE,
    TABLES,
    Recorder,
    answers,
    consuming,
    effects,
    event,
    parked,
    stored_offset,
    until,
)
from yard_bus.consumer import ATTEMPTS_BEFORE_PARKING
from yard_domain.errors import Conflict, Permanent, Retryable
from yard_events.envelope import Envelope
from yard_store.unit_of_work import Store, UnitOfWork

GOOD_AND_BAD = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("b", 6)]
"""Number 3 is the one that fails: 1, 2, 4 and 6 have their effect, 3 and what follows of its key are parked."""


def bad_permanently(n: int, _uow: UnitOfWork) -> None:
    if n == 3:
        raise Permanent("this is nonsense")


def bad_unclassified(n: int, _uow: UnitOfWork) -> None:
    if n == 3:
        raise ZeroDivisionError("a bug")


def bad_missing_file(n: int, _uow: UnitOfWork) -> None:
    if n == 3:
        open("/does/not/exist").close()


async def bad_for_the_database(n: int, uow: UnitOfWork) -> None:
    if n == 3:
        await uow.connection.execute(TABLES.offsets.insert().values(topic="x", partition=2**40))


def plain(key: str, n: int) -> Envelope:
    return event(n, key)


BROKEN = {
    "no json": lambda key, n: event(n, key, value=b"{"),
    "other fields": lambda key, n: event(n, key, value=b'{"k": "a"}'),
    "wrong types": lambda key, n: event(n, key, value=b'{"k": "a", "n": "many"}'),
    "invalid utf-8": lambda key, n: event(n, key, value=b"\xff\xfe"),
    "a sequence that no bigint holds": lambda key, n: event(n, key, seq=10**30),
    "a sequence below zero": lambda key, n: event(n, key, seq=-5),
}
FAILING = {
    "permanent": bad_permanently,
    "unclassified": bad_unclassified,
    "missing file": bad_missing_file,
    "unbindable value": bad_for_the_database,
}


@pytest.mark.parametrize("limit", [500, 1], ids=["in one batch", "one by one"])
@pytest.mark.parametrize("case", [*BROKEN, *FAILING])
async def test_what_can_never_succeed_parks_its_key_and_others_flow(
    bus_harness: BusHarness, store: Store, case: str, limit: int
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([(BROKEN.get(case, plain) if n == 3 else plain)(key, n) for key, n in GOOD_AND_BAD])
    recorder = Recorder(FAILING.get(case))
    async with consuming(store, bus, {ONE.name: recorder}, limit=limit) as (_, task):
        await recorder.until(1, 2, 4, 6)
        await until(lambda: _offset_is(store, 6), "all six are consumed")
        assert not task.done()
    assert await effects(store) == [("a", 1), ("b", 2), ("b", 4), ("b", 6)]
    assert await answers(bus_harness, 4) == [1, 2, 4, 6]
    assert await parked(store) == [("a", 2, True), ("a", 4, False)]


async def _offset_is(store: Store, offset: int) -> bool:
    return await stored_offset(store) == offset


async def test_a_parked_key_stays_parked_over_a_restart(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(3)])
    async with consuming(store, bus, {ONE.name: Recorder(bad_permanently)}):
        await until(lambda: _offset_is(store, 1), "it is parked")
    await bus.publish([event(4), event(5, "b"), event(6)])
    recorder = Recorder()
    async with consuming(second_store, bus_harness.second.bus, {ONE.name: recorder}):
        await until(lambda: _offset_is(store, 4), "all are consumed")
    assert recorder.committed == [5]
    assert await parked(store) == [("a", 0, True), ("a", 1, False), ("a", 3, False)]


async def test_a_parked_record_keeps_its_bytes_origin_and_error(bus_harness: BusHarness, store: Store) -> None:
    bad = event(3, "ключ", value=b"\x00\xffbroken", source="agent/x")
    await bus_harness.first.bus.publish([bad])
    async with consuming(store, bus_harness.first.bus, {ONE.name: Recorder()}):
        await until(lambda: _offset_is(store, 1), "it is parked")
    async with store.reading() as connection:
        [row] = await connection.execute(TABLES.parked.select())
    assert (row.topic, row.partition, row.log_offset, row.key, row.type) == (ONE.name, 0, 0, "ключ", bad.type)
    assert row.value == b"\x00\xffbroken"
    assert '"ce_source": "agent/x"' in row.headers
    assert row.error.startswith("Permanent: ")
    assert bad.id in row.error


@pytest.mark.parametrize("error", [Retryable, Conflict])
@pytest.mark.parametrize("failures", [1, ATTEMPTS_BEFORE_PARKING + 3])
async def test_what_may_succeed_later_is_tried_in_place_for_as_long_as_it_takes(
    bus_harness: BusHarness, store: Store, error: type[Exception], failures: int
) -> None:
    tries: Counter[int] = Counter()

    def sometimes(n: int, _uow: UnitOfWork) -> None:
        tries[n] += 1
        if n == 3 and tries[n] <= failures:
            raise error("not now")

    await bus_harness.first.bus.publish([plain(key, n) for key, n in GOOD_AND_BAD])
    recorder = Recorder(sometimes)
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await recorder.until(6)
    assert [n for _, n in await effects(store)] == [1, 2, 3, 4, 5, 6]
    assert tries[3] == failures + 1
    assert await parked(store) == []


@pytest.mark.parametrize("failures", [1, ATTEMPTS_BEFORE_PARKING - 1])
async def test_an_unclassified_error_gets_several_tries_one_by_one_in_order(
    bus_harness: BusHarness, store: Store, failures: int
) -> None:
    tries: Counter[int] = Counter()

    def sometimes(n: int, _uow: UnitOfWork) -> None:
        tries[n] += 1
        if n == 3 and tries[n] <= failures + 1:  # one of them in the batch
            raise ZeroDivisionError

    await bus_harness.first.bus.publish([plain(key, n) for key, n in GOOD_AND_BAD])
    recorder = Recorder(sometimes)
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await recorder.until(6)
    assert [n for _, n in await effects(store)] == [1, 2, 3, 4, 5, 6]
    assert recorder.batches == [1] * 6, "the failed batch was redone one by one"
    assert await parked(store) == []


async def test_an_unclassified_error_is_taken_for_permanent_after_its_tries(
    bus_harness: BusHarness, store: Store
) -> None:
    tries: Counter[int] = Counter()

    def always(n: int, _uow: UnitOfWork) -> None:
        tries[n] += 1
        raise ZeroDivisionError

    await bus_harness.first.bus.publish([event(1)])
    async with consuming(store, bus_harness.first.bus, {ONE.name: Recorder(always)}):
        await until(lambda: _offset_is(store, 1), "it is parked")
    assert tries[1] == ATTEMPTS_BEFORE_PARKING
    assert await parked(store) == [("a", 0, True)]


async def test_a_failed_attempt_leaves_no_effects_and_no_events(bus_harness: BusHarness, store: Store) -> None:
    failed: list[int] = []

    def last_fails_once(n: int, _uow: UnitOfWork) -> None:
        if n == 5 and not failed:
            failed.append(n)
            raise Retryable("after four effects")

    await bus_harness.first.bus.publish([event(n) for n in range(6)])
    recorder = Recorder(last_fails_once)
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await recorder.until(5)
    assert [n for _, n in await effects(store)] == [0, 1, 2, 3, 4, 5]
    assert await answers(bus_harness, 6) == [0, 1, 2, 3, 4, 5]


async def test_a_type_that_this_version_does_not_know_is_passed_over(bus_harness: BusHarness, store: Store) -> None:
    recorder = Recorder()
    later = [event(1), event(2, kind="yard.contract.later.v1", value=b"whatever it is"), event(3)]
    await bus_harness.first.bus.publish(later)
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await recorder.until(1, 3)
    assert recorder.unknown == ["yard.contract.later.v1"]
    assert await stored_offset(store) == 3
    assert await parked(store) == []
