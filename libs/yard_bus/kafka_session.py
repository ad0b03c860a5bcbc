"""Membership of a Kafka consumer group, or a plain reader: the Session of the Kafka bus.

Positions are the caller's: every read names its offset, which comes from the service's own database. What is committed
to Kafka follows, for lag tools only.
"""
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
# aiokafka comes without stubs.

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from yard_bus.kafka_assignor import SingleActiveAssignor
from yard_bus.kafka_errors import describe, kafka_errors
from yard_bus.kafka_metadata import TopicShape, topic_shapes
from yard_bus.protocol import OffsetGone, PartitionRef, Record
from yard_domain.errors import Retryable

_log = structlog.get_logger("yard.kafka")

_WAIT_MS = 3_600_000
_LET_GO_SECONDS = 5.0
_CHECK_SECONDS = 5.0
"""How often topics are asked for their ids, and how old an answer may be when records are handed out."""
_ABSENT_SECONDS = 10.0
"""How long a topic may be unknown to the brokers (a broker that starts knows little) before it counts as deleted."""


class KafkaSession:
    """Implements `yard_bus.protocol.Session`. Made and ended by `KafkaBus.session`."""

    def __init__(
        self, consumer: AIOKafkaConsumer, topics: Mapping[str, TopicShape], assignor: SingleActiveAssignor, prefix: str
    ):
        self._consumer: Any = consumer
        self._shapes = dict(topics)
        self._assignor = assignor
        self._prefix = prefix
        self._duties: asyncio.Queue[tuple[frozenset[PartitionRef], asyncio.Event]] = asyncio.Queue()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._at: dict[PartitionRef, int] = {}
        self._consumed: dict[PartitionRef, int] = {}
        self._checked_at = time.monotonic()
        self._absent_since: dict[str, float] = {}
        self._gone: dict[str, asyncio.Future[str]] = {
            name: asyncio.get_running_loop().create_future() for name in self._shapes
        }

    # --- assignment --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether this member of the group is the one that has the partitions."""
        return self._assignor.active_since is not None

    def place(self, ref: PartitionRef) -> TopicPartition:
        return TopicPartition(self._prefix + ref.topic, ref.partition)

    def everything(self) -> frozenset[PartitionRef]:
        return frozenset(
            PartitionRef(name, number, shape.incarnation)
            for name, shape in self._shapes.items()
            for number in range(shape.partitions)
        )

    async def offer(self, refs: frozenset[PartitionRef], *, wait: bool) -> None:
        """Tell the reader of `assignments`; with `wait`, return once it has stopped what it did before."""
        self._at.clear()
        taken = asyncio.Event()
        self._duties.put_nowait((refs, taken))
        if wait:
            try:
                async with asyncio.timeout(_LET_GO_SECONDS):
                    await taken.wait()
            except TimeoutError:
                # It is fenced when it commits; holding up the whole group would be worse.
                _log.warning("partitions were taken away from a handler that did not let go in time")

    async def assignments(self) -> AsyncIterator[frozenset[PartitionRef]]:
        """A standby gets the empty set."""
        while True:
            refs, taken = await self._unless_over(self._duties.get())
            try:
                # Only when the reader asks for the next has it dealt with this one.
                yield refs
            finally:
                taken.set()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def read(self, ref: PartitionRef, offset: int | None, limit: int) -> list[Record]:
        place = self.place(ref)
        if offset is not None:
            self._consumed[ref] = offset
        while True:
            found = await self._unless_over(self._fetch(ref, place, offset, limit), gone=self._gone[ref.topic])
            if found:
                # What was fetched counts only if it is still the topic that the offset belongs to.
                await self._check_topics(force=False)
                self._raise_if_gone(ref)
                return found

    async def _fetch(self, ref: PartitionRef, place: TopicPartition, offset: int | None, limit: int) -> list[Record]:
        known = self._at.pop(ref, None)
        try:
            if offset is None:
                offset = (await self._consumer.beginning_offsets([place]))[place]
            if known != offset:
                self._consumer.seek(place, offset)
            found = await self._consumer.getmany(place, timeout_ms=_WAIT_MS, max_records=limit)
            records = [_record(ref, message) for message in found.get(place, ())]
            if records:
                self._at[ref] = following = await self._consumer.position(place)
                # Markers of transactions follow the last record; a position behind them does not age with them.
                records[-1] = replace(records[-1], skip_to=max(following, records[-1].following))
            return records
        except NoOffsetForPartitionError:
            return []  # the position is ours to set, which the next round does
        except OffsetOutOfRangeError as error:
            bounds = await self._bounds(place)
            raise OffsetGone(f"{ref.topic}/{ref.partition}: offset {offset} is outside of {bounds}") from error
        except IllegalStateError as error:
            raise Retryable(f"kafka: {ref.topic}/{ref.partition} was assigned to another instance") from error
        except KafkaError as error:
            raise Retryable(f"kafka: reading {ref.topic}/{ref.partition}: {describe(error)}") from error

    async def _bounds(self, place: TopicPartition) -> str:
        with kafka_errors(f"asking where {place.topic}/{place.partition} begins"):
            first = await self._consumer.beginning_offsets([place])
            end = await self._consumer.end_offsets([place])
        return f"[{first[place]}, {end[place]}]"

    async def _unless_over(self, waiting: Any, gone: "asyncio.Future[str] | None" = None) -> Any:
        """The result of `waiting`, unless the session ends or the topic goes before."""
        task = asyncio.ensure_future(waiting)
        enders = {self._over} if gone is None else {self._over, gone}
        try:
            await asyncio.wait({task, *enders}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if gone is not None and gone.done():
            raise OffsetGone(gone.result())
        if self._over.done():
            if task.done() and not task.cancelled():
                task.exception()  # looked at: the end of the session is what is told
            raise Retryable(self._over.result())
        return task.result()

    # --- keeping watch -----------------------------------------------------------------------------------------------

    async def watch(self, group: bool) -> None:
        """For the life of the session: are the topics still the same? And positions for lag tools."""
        told: dict[PartitionRef, int] = {}
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self._check_topics(force=True)
                if group and (news := {ref: at for ref, at in self._mine() if told.get(ref) != at}):
                    with kafka_errors("committing positions"):
                        await self._consumer.commit({self.place(ref): at for ref, at in news.items()})
                    told |= news
            except Retryable as error:
                _log.warning("the brokers do not answer", error=str(error))

    def _mine(self) -> list[tuple[PartitionRef, int]]:
        """What was consumed of the partitions that this member has now, without those of topics that are gone."""
        places = self._consumer.assignment()
        return [
            (ref, at)
            for ref, at in self._consumed.items()
            if self.place(ref) in places and not self._gone[ref.topic].done()
        ]

    def end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def metadata_changed(self, _cluster: object) -> None:
        """What aiokafka heard from the brokers may be about another topic of the same name."""
        self._checked_at = 0.0

    async def lag(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for ref, consumed in self._mine():
            end = self._consumer.highwater(self.place(ref))
            if end is not None:
                found[(ref.topic, ref.partition)] = max(end - max(consumed, self._at.get(ref, 0)), 0)
        return found

    async def _check_topics(self, *, force: bool) -> None:
        if not force and time.monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        began = time.monotonic()
        shapes = await topic_shapes(self._consumer._client, self._shapes, self._prefix)
        self._checked_at = began
        for name, known in self._shapes.items():
            now = shapes.get(name)
            if now is None:
                since = self._absent_since.setdefault(name, began)
                if began - since >= _ABSENT_SECONDS:
                    self._lose(name, f"{name} does not exist any more")
                continue
            self._absent_since.pop(name, None)
            if now.incarnation != known.incarnation:
                self._lose(name, f"{name} was deleted and made again: {known.incarnation} is now {now.incarnation}")

    def _lose(self, name: str, why: str) -> None:
        if not self._gone[name].done():
            self._gone[name].set_result(why)

    def _raise_if_gone(self, ref: PartitionRef) -> None:
        if self._gone[ref.topic].done():
            raise OffsetGone(self._gone[ref.topic].result())
        if ref.topic in self._absent_since:
            raise Retryable(f"kafka: {ref.topic} is not known to the brokers at the moment")


class Listener(ConsumerRebalanceListener):
    """From aiokafka's callbacks to the session's assignments."""

    def __init__(self, session: KafkaSession, assignor: SingleActiveAssignor, now_ms: Any) -> None:
        self._session = session
        self._assignor = assignor
        self._now_ms = now_ms

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        if revoked:
            await self._session.offer(frozenset(), wait=True)

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        refs = frozenset(ref for ref in self._session.everything() if self._session.place(ref) in assigned)
        if not refs:
            self._assignor.active_since = None
        elif self._assignor.active_since is None:
            self._assignor.active_since = self._now_ms()
        await self._session.offer(refs, wait=False)


def _record(ref: PartitionRef, message: Any) -> Record:
    headers = {name: value.decode(errors="replace") for name, value in message.headers}
    key = b"" if message.key is None else message.key
    return Record(
        ref=ref,
        offset=message.offset,
        key=key.decode(errors="replace"),
        type=headers.get("ce_type", ""),
        headers=headers,
        value=message.value or b"",
    )
