"""Appending and reading: what is committed becomes visible, once, in the order of the commits."""

import asyncio

import pytest

from support.bus_harness import BusHarness
from support.contract import AT, MANY, ONE, OUT, Counted, event, number, partitions, read
from yard_bus.protocol import OffsetGone, PartitionRef
from yard_domain.errors import Retryable
from yard_events.partitioner import partition_for
from yard_events.registry import Policy, Topic
from yard_store.unit_of_work import Store


async def test_an_appended_event_is_visible_after_the_commit_and_not_before(bus_harness: BusHarness) -> None:
    first, second = bus_harness.first, bus_harness.second
    async with second.bus.session(None, [ONE.name, OUT.name]) as session:
        one, out = await partitions(session)
        reading = asyncio.create_task(read(session, one, 1))
        async with first.engine.connect() as connection, connection.begin():
            await first.bus.append(connection, [event(1)], AT)
            # The marker goes round: had the event been visible, the reader would have it by now.
            await first.bus.publish([event(9, topic=OUT.name)])
            assert [number(record) for record in await read(session, out, 1)] == [9]
            assert not reading.done()
        [record] = await reading
    assert (record.offset, number(record), record.key) == (0, 1, "a")


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
    async with bus_harness.first.engine.connect() as connection:
        transaction = await connection.begin()
        await bus_harness.first.bus.append(connection, [event(2)], AT)
        await transaction.rollback()
    async with store.unit_of_work() as uow:
        uow.emit(Counted(n=3))
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        records = await read(session, ref, 1)
    assert [(record.offset, number(record)) for record in records] == [(0, 3)]


@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_open_appenders_the_later_waits_so_no_reader_skips(
    bus_harness: BusHarness, first_commits: bool
) -> None:
    """Numbers taken before the commit would become visible out of order, and a reader would pass over one for ever."""
    first, second = bus_harness.first, bus_harness.second
    async with second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        async with first.engine.connect() as a, second.engine.connect() as b:
            earlier, later = await a.begin(), await b.begin()
            await first.bus.append(a, [event(1), event(2)], AT)
            appending = asyncio.create_task(second.bus.append(b, [event(3)], AT))
            await bus_harness.until_appenders_wait(1)
            await (earlier.commit() if first_commits else earlier.rollback())
            await appending
            await later.commit()
        expected = [1, 2, 3] if first_commits else [3]
        records = await read(session, ref, len(expected))
    assert [number(record) for record in records] == expected
    assert [record.offset for record in records] == list(range(len(expected)))


async def test_appenders_to_several_partitions_in_opposite_order_do_not_deadlock(bus_harness: BusHarness) -> None:
    first, second = bus_harness.first, bus_harness.second
    keys = [next(f"k{n}" for n in range(999) if partition_for(f"k{n}", 4) == partition) for partition in range(4)]
    up = [event(n, key, topic=MANY.name) for n, key in enumerate(keys)]
    down = [event(10 + n, key, topic=MANY.name) for n, key in enumerate(reversed(keys))]

    # A third one in the middle makes both wait: appenders that locked in their own order would each hold one half.
    async with first.engine.connect() as middle, first.engine.connect() as a, second.engine.connect() as b:
        blocking, rising, falling = await middle.begin(), await a.begin(), await b.begin()
        await first.bus.append(middle, [event(99, keys[2], topic=MANY.name)], AT)
        appending = [asyncio.create_task(first.bus.append(a, up, AT))]
        appending.append(asyncio.create_task(second.bus.append(b, down, AT)))
        await bus_harness.until_appenders_wait(2)
        await blocking.commit()
        async with asyncio.timeout(20):
            done, _ = await asyncio.wait(appending, return_when=asyncio.FIRST_COMPLETED)
            await (rising if appending[0] in done else falling).commit()
            await asyncio.gather(*appending)
            await (falling if appending[0] in done else rising).commit()
    async with first.bus.session(None, [MANY.name]) as session:
        for ref in await partitions(session):
            count = 3 if ref.partition == 2 else 2
            assert len(await read(session, ref, count)) == count


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
    with pytest.raises(LookupError, match=r"yard\.nowhere\.v1"):
        await bus_harness.first.bus.publish([event(1, topic="yard.nowhere.v1")])


async def test_a_waiting_reader_wakes_for_each_event(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        for n in range(20):
            waiting = asyncio.create_task(read(session, ref, 1, n))
            await bus_harness.first.bus.publish([event(n)])
            assert [number(record) for record in await waiting] == [n]


async def test_several_readers_of_a_partition_all_wake(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        waiting = [asyncio.create_task(read(session, ref, 1)) for _ in range(3)]
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


async def test_a_gap_left_by_compaction_is_no_loss(bus_harness: BusHarness) -> None:
    await bus_harness.first.bus.publish([event(n) for n in range(4)])
    await bus_harness.compact_away(ONE.name, 1)
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [record.offset for record in await read(session, ref, 2, 1)] == [2, 3]


async def test_reading_a_deleted_topic_says_that_it_is_gone(bus_harness: BusHarness) -> None:
    async with bus_harness.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        await bus_harness.delete_and_make_again(ONE)
        with pytest.raises(OffsetGone):
            await read(session, PartitionRef(ref.topic, ref.partition, ref.incarnation), 1, 1)
