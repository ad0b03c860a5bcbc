"""The embedded log: appending inside of transactions that are open at the same time, and its own compaction."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.bus_harness import PostgresHarness
from support.contract import ALL, AT, MANY, ONE, OUT, TABLES, event, number, partitions, read
from yard_events.partitioner import partition_for
from yard_runtime.service import Runtime


@pytest.fixture
async def embedded(runtime: Runtime, second_runtime: Runtime) -> AsyncIterator[PostgresHarness]:
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:
        harness = PostgresHarness(runtime, second_runtime, Path(folder))
        await harness.ensure_topics(ALL)
        yield harness


async def test_an_appended_event_is_visible_after_the_commit_and_not_before(embedded: PostgresHarness) -> None:
    first, second = embedded.first, embedded.second
    async with second.bus.session(None, [ONE.name, OUT.name]) as session:
        one, out = await partitions(session)
        reading = asyncio.create_task(read(session, one, 1))
        async with first.engine.connect() as connection, connection.begin():
            await first.bus.appender(TABLES).append(connection, [event(1)], AT)
            # The marker goes round: had the event been visible, the reader would have it by now.
            await first.bus.publish([event(9, topic=OUT.name)])
            assert [number(record) for record in await read(session, out, 1)] == [9]
            assert not reading.done()
        [record] = await reading
    assert (record.offset, number(record), record.key) == (0, 1, "a")


@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_open_appenders_the_later_waits_so_no_reader_skips(
    embedded: PostgresHarness, first_commits: bool
) -> None:
    """Numbers taken before the commit would become visible out of order, and a reader would pass over one for ever."""
    first, second = embedded.first, embedded.second
    async with second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        async with first.engine.connect() as a, second.engine.connect() as b:
            earlier, later = await a.begin(), await b.begin()
            await first.bus.appender(TABLES).append(a, [event(1), event(2)], AT)
            appending = asyncio.create_task(second.bus.appender(TABLES).append(b, [event(3)], AT))
            await embedded.until_appenders_wait(1)
            await (earlier.commit() if first_commits else earlier.rollback())
            await appending
            await later.commit()
        expected = [1, 2, 3] if first_commits else [3]
        records = await read(session, ref, len(expected))
    assert [number(record) for record in records] == expected
    assert [record.offset for record in records] == list(range(len(expected)))


async def test_appenders_to_several_partitions_in_opposite_order_do_not_deadlock(embedded: PostgresHarness) -> None:
    first, second = embedded.first, embedded.second
    keys = [next(f"k{n}" for n in range(999) if partition_for(f"k{n}", 4) == partition) for partition in range(4)]
    up = [event(n, key, topic=MANY.name) for n, key in enumerate(keys)]
    down = [event(10 + n, key, topic=MANY.name) for n, key in enumerate(reversed(keys))]

    # A third one in the middle makes both wait: appenders that locked in their own order would each hold one half.
    async with first.engine.connect() as middle, first.engine.connect() as a, second.engine.connect() as b:
        blocking, rising, falling = await middle.begin(), await a.begin(), await b.begin()
        await first.bus.appender(TABLES).append(middle, [event(99, keys[2], topic=MANY.name)], AT)
        appending = [asyncio.create_task(first.bus.appender(TABLES).append(a, up, AT))]
        appending.append(asyncio.create_task(second.bus.appender(TABLES).append(b, down, AT)))
        await embedded.until_appenders_wait(2)
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


async def test_a_gap_left_by_compaction_is_no_loss(embedded: PostgresHarness) -> None:
    await embedded.first.bus.publish([event(n) for n in range(4)])
    await embedded.compact_away(ONE.name, 1)
    async with embedded.second.bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [record.offset for record in await read(session, ref, 2, 1)] == [2, 3]
