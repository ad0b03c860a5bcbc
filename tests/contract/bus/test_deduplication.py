"""Producers without a transaction publish again when they do not know: consumers drop what they have seen."""

from collections.abc import Sequence

import pytest

from support.bus_harness import BusHarness
from support.contract import MANY, ONE, Recorder, answers, consuming, effects, event, until
from yard_domain.errors import Retryable
from yard_events.envelope import Envelope
from yard_store.unit_of_work import Store, UnitOfWork


def sent(*numbers: int, source: str = "agent/one") -> list[Envelope]:
    return [event(n, source=source, seq=n) for n in numbers]


@pytest.mark.parametrize("limit", [500, 1], ids=["in one batch", "one by one"])
async def test_a_double_has_no_second_effect(bus_harness: BusHarness, store: Store, limit: int) -> None:
    bus = bus_harness.first.bus
    for envelopes in (sent(1, 2), sent(1, 2), sent(2, 3), sent(1), sent(4)):
        await bus.publish(envelopes)
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}, limit=limit):
        await recorder.until(4)
    assert [n for _, n in await effects(store)] == [1, 2, 3, 4]
    assert await answers(bus_harness, 4) == [1, 2, 3, 4]


async def test_a_double_after_a_restart_has_no_second_effect(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish(sent(1, 2))
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(2)
    await bus.publish(sent(1, 2, 3))
    recorder = Recorder()
    async with consuming(second_store, bus_harness.second.bus, {ONE.name: recorder}):
        await recorder.until(3)
    assert recorder.committed == [3]


async def test_each_producer_counts_for_itself(bus_harness: BusHarness, store: Store) -> None:
    bus = bus_harness.first.bus
    await bus.publish([*sent(10), event(1, source="agent/two", seq=1), event(2, source="agent/two", seq=2)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(2)
    assert recorder.committed == [10, 1, 2]


async def test_each_partition_counts_for_itself(bus_harness: BusHarness, store: Store) -> None:
    bus = bus_harness.first.bus
    keys = [f"k{n}" for n in range(12)]
    # The highest sequence first: in another partition the lower ones are no doubles.
    await bus.publish([event(n, key, topic=MANY.name, source="agent/one", seq=100 - n) for n, key in enumerate(keys)])
    recorder = Recorder()
    async with consuming(store, bus, {MANY.name: recorder}):
        await until(lambda: _consumed(store, 12), "all partitions are read")
    by_partition: Sequence[int] = sorted(recorder.committed)
    assert 4 <= len(by_partition) < 12


async def _consumed(store: Store, count: int) -> bool:
    return sum(offset for _, offset in (await store.offsets([MANY.name])).values()) == count


async def test_records_without_a_sequence_are_never_doubles(bus_harness: BusHarness, store: Store) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(1), event(1), *sent(5), event(1), event(2)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(2)
    assert recorder.committed == [1, 1, 5, 1, 2]


async def test_an_attempt_that_was_rolled_back_is_not_remembered_as_seen(bus_harness: BusHarness, store: Store) -> None:
    """Otherwise its second try would take the event for a double of itself."""
    failed: list[int] = []

    def once(n: int, _uow: UnitOfWork) -> None:
        if not failed:
            failed.append(n)
            raise Retryable("not now")

    await bus_harness.first.bus.publish(sent(1, 2))
    recorder = Recorder(once)
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}):
        await recorder.until(1, 2)
    assert [n for _, n in await effects(store)] == [1, 2]
