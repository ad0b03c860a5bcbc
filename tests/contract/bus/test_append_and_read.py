"""Appending and reading: what is committed becomes visible, once, in the order of the commits."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from support.bus_harness import BusHarness
from support.contract import MANY, ONE, OUT, Counted, event, number, partitions, read
from yard_bus.protocol import OffsetGone, PartitionRef
from yard_domain.errors import Retryable
from yard_events.partitioner import partition_for
from yard_events.registry import Policy, Topic
from yard_store.unit_of_work import Store


async def test_a_record_comes_back_as_it_was_appended(bus_harness: BusHarness) -> None:
    envelope = event(7, "schlüssel ✓", source="agent/ü", seq=4)
    await bus_harness.first.bus.publish([envelope, event(8, value=b"\x00\xff{not json")])
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        good, bad = await read(session, ref, 2)
    assert (good.ref, good.key, good.type) == (ref, envelope.key, envelope.type)
    assert (good.headers, good.value) == (envelope.headers(), envelope.value)
    assert bad.value == b"\x00\xff{not json"


async def test_events_of_a_unit_of_work_that_fails_never_appear(bus_harness: BusHarness, store: Store) -> None:
    async def fail() -> None:
        async with store.unit_of_work() as uow:
            uow.emit(Counted(n=1))
            raise LookupError("after all, no")

    with pytest.raises(LookupError):
        await fail()
    async with store.unit_of_work() as uow:
        uow.emit(Counted(n=3))
    await bus_harness.flush()
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        records = await read(session, ref, 1)
    assert [(record.offset, number(record)) for record in records] == [(0, 3)]


async def test_a_key_stays_in_its_partition_and_in_order(bus_harness: BusHarness) -> None:
    sent = [event(n, f"k{n % 10}", topic=MANY.name) for n in range(100)]
    await bus_harness.first.bus.publish(sent[:50])
    await bus_harness.second.bus.publish(sent[50:])
    found: dict[str, list[int]] = {}
    async with bus_harness.second.bus.session(None, [MANY.name]) as session:
        refs = await partitions(session)
        for ref in refs:
            count = sum(partition_for(envelope.key, 4) == ref.partition for envelope in sent)
            for record in await read(session, ref, count) if count else []:
                assert partition_for(record.key, 4) == record.ref.partition
                found.setdefault(record.key, []).append(number(record))
    assert [ref.partition for ref in refs] == [0, 1, 2, 3]
    assert found == {f"k{n}": list(range(n, 100, 10)) for n in range(10)}


async def test_the_stored_partition_count_rules_over_the_registry(bus_harness: BusHarness) -> None:
    grown = Topic(MANY.name, MANY.writer, MANY.key, Policy.DELETE, MANY.retention_seconds, partitions=9)
    await bus_harness.ensure_topics([grown])
    sent = [event(n, f"k{n}", topic=MANY.name) for n in range(40)]
    await bus_harness.second.bus.publish(sent)
    async with bus_harness.first.bus.session(None, [MANY.name]) as session:
        refs = await partitions(session)
        assert [ref.partition for ref in refs] == [0, 1, 2, 3]
        assert all([await read(session, ref, 1) for ref in refs])


async def test_making_topics_again_changes_no_incarnation_and_loses_no_record(bus_harness: BusHarness) -> None:
    await bus_harness.first.bus.publish([event(1)])
    async with bus_harness.first.bus.session(None, [ONE.name]) as session:
        before = await partitions(session)
    await asyncio.gather(*(bus.ensure_topics([ONE, MANY, OUT][::step]) for bus, step in _both(bus_harness)))
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [ref] == before
        assert [number(record) for record in await read(session, ref, 1)] == [1]


def _both(harness: BusHarness) -> list[tuple[object, int]]:
    return [(harness.first.bus, 1), (harness.second.bus, -1)]


async def test_an_unknown_topic_is_named(bus_harness: BusHarness) -> None:
    with pytest.raises((LookupError, Retryable), match=r"yard\.nowhere\.v1"):
        await bus_harness.first.bus.publish([event(1, topic="yard.nowhere.v1")])


async def test_a_waiting_reader_wakes_for_each_event(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        for n in range(20):
            waiting = asyncio.create_task(read(session, ref, 1, n))
            await bus_harness.first.bus.publish([event(n)])
            assert [number(record) for record in await waiting] == [n]


async def test_several_readers_of_a_partition_all_wake(bus_harness: BusHarness) -> None:
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(bus.session(None, [ONE.name]))
            for bus in (bus_harness.first.bus, bus_harness.second.bus, bus_harness.second.bus)
        ]
        [ref] = await partitions(sessions[0])
        waiting = [asyncio.create_task(read(session, ref, 1)) for session in sessions]
        await bus_harness.first.bus.publish([event(1)])
        for task in waiting:
            assert [number(record) for record in await task] == [1]


async def test_a_reader_gets_no_more_than_its_limit_and_goes_on_where_it_was(bus_harness: BusHarness) -> None:
    await bus_harness.first.bus.publish([event(n) for n in range(10)])
    async with bus_harness.first.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [record.offset for record in await session.read(ref, None, 4)] == [0, 1, 2, 3]
        assert [record.offset for record in await session.read(ref, 4, 100)] == [4, 5, 6, 7, 8, 9]


async def test_a_broken_session_ends_with_retryable_and_the_next_one_catches_up(bus_harness: BusHarness) -> None:
    await bus_harness.first.bus.publish([event(1)])
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        assigned = session.assignments()
        [ref] = await anext(aiter(assigned))
        assert [number(record) for record in await read(session, ref, 1)] == [1]
        waiting = asyncio.create_task(read(session, ref, 1, 1))
        await bus_harness.end_sessions()
        with pytest.raises(Retryable):
            await waiting
        await bus_harness.first.bus.publish([event(2)])
        with pytest.raises(Retryable):  # nobody may go on in a session that is over, however much there is to read
            await read(session, ref, 1, 0)
        with pytest.raises(Retryable):
            await anext(aiter(assigned))
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        assert [number(record) for record in await read(session, ref, 1, 1)] == [2]


async def test_closing_a_session_ends_its_readers(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        waiting = asyncio.create_task(read(session, ref, 1))
        await asyncio.sleep(0)
    with pytest.raises(Retryable):
        await waiting


@pytest.mark.parametrize(("offset", "gone"), [(1, True), (2, False), (3, False), (4, False), (5, True), (10**12, True)])
async def test_an_offset_outside_of_the_log_is_gone_at_once(bus_harness: BusHarness, offset: int, gone: bool) -> None:
    """The log holds 2 and 3; 4 is where the next one will be."""
    await bus_harness.first.bus.publish([event(n) for n in range(4)])
    await bus_harness.drop_before(ONE.name, 2)
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        if gone:
            with pytest.raises(OffsetGone, match=str(offset)):
                await read(session, ref, 1, offset)
            return
        reading = asyncio.create_task(read(session, ref, 1, offset))
        await bus_harness.first.bus.publish([event(4)])
        assert [number(record) for record in await reading] == [offset]


async def test_without_an_offset_a_reader_begins_at_the_oldest_there_is(bus_harness: BusHarness) -> None:
    await bus_harness.first.bus.publish([event(n) for n in range(4)])
    await bus_harness.drop_before(ONE.name, 2)
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [record.offset for record in await read(session, ref, 2)] == [2, 3]


async def test_reading_a_deleted_topic_says_that_it_is_gone(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        await bus_harness.delete_and_make_again(ONE)
        with pytest.raises(OffsetGone):
            await read(session, PartitionRef(ref.topic, ref.partition, ref.incarnation), 1, 1)
