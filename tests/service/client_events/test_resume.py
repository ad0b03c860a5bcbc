"""Going on: what a reader did not finish comes again, and nothing is lost or handed out twice in between."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import GroupCoordinatorNotAvailableError

from support.event_log import Log, headers_of, job_event, number_of
from yard_client.events import (
    CheckpointUnreadable,
    EventConsumer,
    FileCheckpoint,
    Place,
    Position,
    PositionLost,
    ReceivedEvent,
)
from yard_events.registry import JOBS_EVENTS

KEEPERS = ("group", "file")


@pytest.fixture(params=KEEPERS)
def keeping(request: pytest.FixtureRequest, group: str, tmp_path: Path) -> dict[str, Any]:
    """Options of a consumer that keeps its position, in each of the two ways."""
    return {"group": group} if request.param == "group" else {"state": FileCheckpoint(tmp_path / "positions.json")}


async def take(log: Log, count: int, *, ack_last: bool = False, **options: Any) -> list[int]:
    """The numbers of the next events; the last one stays unfinished unless acknowledged."""
    found: list[int] = []
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **options) as consumer:
        async for event in consumer:
            found.append(number_of(event))
            if len(found) == count:
                if ack_last:
                    await event.ack()
                break
    return found


async def test_a_reader_that_starts_again_goes_on_with_what_it_had_in_hand(log: Log, keeping: dict[str, Any]) -> None:
    await log.write([job_event(number) for number in range(1, 11)])
    assert await take(log, 4, **keeping) == [1, 2, 3, 4]
    assert await take(log, 3, **keeping) == [4, 5, 6]
    assert await take(log, 2, ack_last=True, **keeping) == [6, 7]
    assert await take(log, 3, ack_last=True, **keeping) == [8, 9, 10]
    await log.write([job_event(11)])
    assert await take(log, 1, **keeping) == [11]


async def test_an_event_whose_handling_failed_comes_again(log: Log, keeping: dict[str, Any]) -> None:
    await log.write([job_event(number) for number in (1, 2, 3)])
    with pytest.raises(ZeroDivisionError):
        async with EventConsumer(log.bootstrap, prefix=log.prefix, **keeping) as consumer:
            async for event in consumer:
                if number_of(event) == 2:
                    raise ZeroDivisionError
    assert await take(log, 2, **keeping) == [2, 3]


async def test_doubles_are_told_across_a_restart(log: Log, keeping: dict[str, Any]) -> None:
    unnumbered = replace(job_event(3), publish_seq=None)
    await log.write([job_event(1), job_event(2), unnumbered])
    assert await take(log, 3, ack_last=True, **keeping) == [1, 2, 3]
    await log.write([job_event(1), job_event(2), unnumbered, job_event(4)])
    assert await take(log, 1, **keeping) == [4]


async def test_only_what_was_acknowledged_by_hand_is_done(log: Log, keeping: dict[str, Any]) -> None:
    await log.write([job_event(number) for number in range(1, 7)])
    options = keeping | {"acknowledge": "manual"}
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **options) as consumer:
        events = [await anext(consumer) for _ in range(5)]
        await events[2].ack()
    assert await take(log, 3, **options) == [4, 5, 6]


async def test_a_killed_reader_has_saved_what_it_did_a_while_ago(log: Log, keeping: dict[str, Any]) -> None:
    """Nothing is awaited at the end: positions were saved while it waited for more."""
    await log.write([job_event(1), job_event(2)])
    consumer = EventConsumer(log.bootstrap, prefix=log.prefix, save_interval_seconds=0.05, **keeping)
    await consumer.__aenter__()
    try:
        assert [number_of(await anext(consumer)) for _ in range(2)] == [1, 2]
        waiting = asyncio.create_task(anext(consumer))
        while await saved_offset(log, keeping) != 2:
            await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
    finally:
        await consumer._consumer.stop()
    await log.write([job_event(3)])
    assert await take(log, 1, **keeping) == [3]


async def saved_offset(log: Log, keeping: dict[str, Any]) -> int | None:
    place = Place(log.prefix + JOBS_EVENTS, 0)
    if "state" in keeping:
        found = (await FileCheckpoint(keeping["state"]._path).load()).get(place)
        return None if found is None else found.offset
    admin = AIOKafkaAdminClient(bootstrap_servers=log.bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(keeping["group"], partitions=[TopicPartition(*place)])
        return offsets[TopicPartition(*place)].offset
    except GroupCoordinatorNotAvailableError:
        return None  # the first group of a broker's life
    finally:
        await admin.close()


async def test_a_cancelled_wait_loses_nothing(log: Log, keeping: dict[str, Any]) -> None:
    found: list[int] = []
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **keeping) as consumer:
        writing = asyncio.create_task(log.write([job_event(number) for number in range(1, 201)]))
        while len(found) < 200:
            try:
                async with asyncio.timeout(0.003):
                    event = await anext(consumer)
            except TimeoutError:
                continue
            found.append(number_of(event))
        await writing
    assert found == list(range(1, 201))


async def test_a_reader_of_news_remembers_where_it_began(log: Log, keeping: dict[str, Any]) -> None:
    await log.write([job_event(1)])
    async with EventConsumer(
        log.bootstrap, prefix=log.prefix, start="latest", save_interval_seconds=0.05, **keeping
    ) as consumer:
        waiting = asyncio.create_task(anext(consumer))
        while await saved_offset(log, keeping) != 1:
            await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
    await log.write([job_event(2)])
    assert await take(log, 1, start="latest", **keeping) == [2]


async def test_where_nothing_is_kept_every_reader_begins_at_its_end(log: Log) -> None:
    await log.write([job_event(1)])
    assert await take(log, 1) == [1]
    assert await take(log, 1) == [1]


async def drop_before(log: Log, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=log.bootstrap)
    await admin.start()
    try:
        where = TopicPartition(log.prefix + JOBS_EVENTS, 0)
        await admin.delete_records({where: RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()


async def test_events_that_were_deleted_unread_are_not_skipped_silently(log: Log, keeping: dict[str, Any]) -> None:
    await log.write([job_event(number) for number in range(1, 6)])
    assert await take(log, 2, ack_last=True, **keeping) == [1, 2]
    await drop_before(log, 4)
    with pytest.raises(PositionLost, match=r"position 2 is outside of what is kept, \[4, 5\]"):
        await take(log, 1, **keeping)
    assert await take(log, 1, ack_last=True, lost_position="earliest", **keeping) == [5]
    await log.write([job_event(6)])
    assert await take(log, 1, **keeping) == [6]


async def test_the_end_of_a_transaction_may_be_deleted_once_everything_before_it_is_done(
    log: Log, keeping: dict[str, Any]
) -> None:
    """A commit takes an offset that no record has. A position before it would look lost when a quiet topic expires."""
    writer = AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=f"{log.prefix}t")
    await writer.start()
    try:
        event = job_event(1)
        async with writer.transaction():
            await writer.send_and_wait(log.prefix + event.topic, event.value, key=b"k", headers=headers_of(event))
    finally:
        await writer.stop()
    options = keeping | {"save_interval_seconds": 0.05}
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **options) as consumer:
        assert number_of(await anext(consumer)) == 1
        waiting = asyncio.create_task(anext(consumer))
        while await saved_offset(log, keeping) != 2:
            await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
    await drop_before(log, 2)
    await log.write([job_event(2)])
    assert await take(log, 1, **keeping) == [2]


async def test_an_offset_that_another_tool_set_is_taken_as_it_is(log: Log, group: str) -> None:
    await log.write([job_event(number) for number in range(1, 5)])
    assert await take(log, 4, ack_last=True, group=group) == [1, 2, 3, 4]
    async with EventConsumer(log.bootstrap, prefix=log.prefix, group=group) as consumer:
        waiting = asyncio.create_task(anext(consumer))
        where = TopicPartition(log.prefix + JOBS_EVENTS, 0)
        while where not in consumer._consumer.assignment():
            await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait([waiting])
        await consumer._consumer.commit({where: 1})  # as a tool does that resets a group: no note beside it
    assert await take(log, 3, group=group) == [2, 3, 4]


async def test_members_of_a_group_share_partitions_and_lose_nothing_when_one_comes_and_one_goes(
    wide_log: Log, group: str
) -> None:
    done: list[int] = []
    wanted: set[int] | None = None
    second_had_some, complete = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with member() as consumer:
            async for event in consumer:
                await finish(event)
                if wanted is not None and wanted <= set(done):
                    complete.set()
                    break

    async def second() -> None:
        async with member() as consumer:
            for _ in range(20):
                await finish(await anext(consumer))
        second_had_some.set()

    async def finish(event: ReceivedEvent) -> None:
        done.append(number_of(event))
        await event.ack()

    def member() -> EventConsumer:
        return EventConsumer(wide_log.bootstrap, prefix=wide_log.prefix, group=group, session_timeout_seconds=6.0)

    async def write(numbers: Iterable[int]) -> None:
        for number in numbers:
            await wide_log.write([job_event(number)], partition=number % 4)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        await write(range(100))
        tasks.create_task(second())
        await write(itertools.takewhile(lambda _: not second_had_some.is_set(), itertools.count(100)))
        last = wide_log.written
        wanted = set(range(last + 100))
        await write(range(last, last + 100))
        await complete.wait()
    assert set(done) == wanted
    # In hand while the group was rearranged: at most one per member and change.
    assert len(done) - len(wanted) <= 4


async def test_an_event_in_hand_is_not_handed_out_again_when_its_partition_stays(log: Log, group: str) -> None:
    """A group is rearranged whenever anybody joins or leaves, and most partitions stay where they are."""
    await log.write([job_event(number) for number in (1, 2, 3)])
    async with EventConsumer(log.bootstrap, prefix=log.prefix, group=group) as consumer:
        event = await anext(consumer)
        await consumer._revoked([TopicPartition(log.prefix + JOBS_EVENTS, 0)])
        second = await anext(consumer)
        assert (number_of(event), number_of(second)) == (1, 2)
        await event.ack()
    assert await take(log, 2, group=group) == [2, 3]


class BookOfMine:
    """A checkpoint over a store of the caller's, which writes effect and position at once."""

    def __init__(self) -> None:
        self.positions: dict[Place, Position] = {}
        self.effects: list[int] = []

    async def load(self) -> Mapping[Place, Position]:
        return dict(self.positions)

    async def save(self, positions: Mapping[Place, Position]) -> None:
        """Positions go with the effects."""

    def book(self, place: Place, event: Any) -> None:
        self.effects.append(number_of(event))
        # Through JSON, as a table would have it.
        self.positions[place] = Position.from_document(json.loads(json.dumps(event.position_after().document())))


async def test_a_state_of_ones_own_has_each_effect_once_however_it_ends(log: Log) -> None:
    await log.write([job_event(number) for number in range(1, 8)])
    book = BookOfMine()
    place = Place(log.prefix + JOBS_EVENTS, 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with EventConsumer(log.bootstrap, prefix=log.prefix, state=book) as consumer:
                async for event in consumer:
                    book.book(place, event)
                    if number_of(event) % 2 == 0:
                        raise ZeroDivisionError
        await log.write([job_event(number) for number in range(1, 8)])
    assert book.effects == [1, 2, 3, 4, 5, 6]


async def test_a_file_that_is_no_checkpoint_is_refused(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text("[]")
    with pytest.raises(CheckpointUnreadable, match=r"positions\.json is no checkpoint"):
        await take(log, 1, state=FileCheckpoint(path))
