"""The relay: carries a service's committed events from its outbox to Kafka, in order, once as far as readers can tell.

One runs per service, in the active instance, under a term of its own. Per round, in one database transaction, it
strikes what the round before published and numbers the next rows: `publish_seq` rises by one per (service, topic,
partition) in the order of commits. Then it publishes them in one Kafka transaction. A crash in between means that the
same rows go out again under the same numbers, and readers drop what is not above the highest they saw.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.kafka_closing import close_producer
from yard_bus.kafka_errors import kafka_errors
from yard_domain.errors import Fenced, Retryable
from yard_events.partitioner import partition_for
from yard_obs.catalogue import PUBLISH_DURATION, RELAY_EVENTS
from yard_store.bulk import bulk_delete, bulk_insert, bulk_update
from yard_store.database_errors import database_errors
from yard_store.unit_of_work import EVENT_NEWS, Ownership, Store

_log = structlog.get_logger("yard.relay")

_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_LIMIT_SECONDS = 2.0
_FINISH_SECONDS = 2.0

T = TypeVar("T")


class TransactionalProducer(Protocol):
    """What the relay needs of aiokafka's producer."""

    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def partitions_for(self, topic: str) -> set[int]: ...

    async def send(self, topic: str, **record: Any) -> "asyncio.Future[Any]": ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Numbered:
    """An outbox row with its place in the log."""

    id: int
    topic: str
    key: str
    headers: str
    value: bytes
    partition: int
    publish_seq: int


class Relay:
    """`producer` makes and starts a producer with this relay's transactional.id, which fences every earlier one."""

    def __init__(
        self,
        store: Store,
        *,
        producer: Callable[[], Awaitable[TransactionalProducer]],
        prefix: str = "",
        batch: int = 500,
        limit_seconds: float = 20.0,
    ) -> None:
        self._store = store
        self._make_producer = producer
        self._prefix = prefix
        self._batch = batch
        self._limit_seconds = limit_seconds
        self._wake = asyncio.Event()
        self._producer: TransactionalProducer | None = None
        self._last: dict[tuple[str, int], int] = {}
        self.away: str | None = None
        """Why nothing goes out at the moment."""

    async def run(self, ownership: Ownership) -> None:
        """Until cancelled. Raises Fenced when another instance relays for the service now."""

        def wake(_key: str) -> None:
            self._wake.set()

        self._store.on_news(EVENT_NEWS, wake)
        delay = _BACKOFF_FIRST_SECONDS
        try:
            while True:
                try:
                    await self._serve(ownership)
                except Retryable as error:
                    if self.away is None:
                        _log.warning("nothing goes out", schema=self._store.schema, error=str(error))
                        delay = _BACKOFF_FIRST_SECONDS
                    self.away = str(error)
                await self._drop_producer()
                await self._store.clock.sleep(delay)
                delay = min(delay * 2, _BACKOFF_LIMIT_SECONDS)
        finally:
            self._store.off_news(EVENT_NEWS, wake)
            await self._drop_producer()

    async def _serve(self, ownership: Ownership) -> None:
        """From whatever state a failure left: rows that have numbers go first, under those."""
        async with self._transaction(ownership) as connection:
            self._last = await self._last_sequences(connection)
            pending = await self._numbered(connection)
        self._producer = await self._make_producer()
        while True:
            pending = await _finishing(self._round(ownership, pending))
            if not pending:
                await self._wake.wait()

    async def _round(self, ownership: Ownership, pending: list[Numbered]) -> list[Numbered]:
        """Publish what has numbers, strike it, number what comes next."""
        if pending:
            await self._publish(pending)
            if self.away is not None:
                _log.info("events go out again", schema=self._store.schema)
                self.away = None
        self._wake.clear()
        async with self._transaction(ownership) as connection:
            await bulk_delete(connection, self._store.tables.outbox, [{"id": row.id} for row in pending])
            return await self._number(connection)

    @asynccontextmanager
    async def _transaction(self, ownership: Ownership) -> AsyncGenerator[AsyncConnection]:
        """Beside the service's units of work: it touches nothing that they touch, so it need not queue with them."""
        t = self._store.tables.ownership
        with database_errors():
            async with self._store.engine.begin() as connection:
                held = sa.select(t.c.term).where(t.c.scope == ownership.scope).with_for_update()
                if await connection.scalar(held) != ownership.term:
                    raise Fenced(f"{self._store.schema}: another instance relays now")
                yield connection

    async def _numbered(self, connection: AsyncConnection) -> list[Numbered]:
        t = self._store.tables.outbox
        statement = sa.select(t).where(t.c.publish_seq.is_not(None)).order_by(t.c.topic, t.c.partition, t.c.publish_seq)
        return [_row(row, row.partition, row.publish_seq) for row in await connection.execute(statement)]

    async def _number(self, connection: AsyncConnection) -> list[Numbered]:
        t = self._store.tables.outbox
        statement = sa.select(t).where(t.c.publish_seq.is_(None)).order_by(t.c.id).limit(self._batch)
        rows = (await connection.execute(statement)).all()
        if not rows:
            return []
        counts = {topic: await self._partitions(topic) for topic in sorted({row.topic for row in rows})}
        last = self._last.copy()
        numbered: list[Numbered] = []
        for row in rows:
            place = (row.topic, partition_for(row.key, counts[row.topic]))
            last[place] = last.get(place, -1) + 1
            numbered.append(_row(row, place[1], last[place]))
        updated = [{"id": n.id, "partition": n.partition, "publish_seq": n.publish_seq} for n in numbered]
        await bulk_update(connection, t, updated)
        touched = {(n.topic, n.partition) for n in numbered}
        await bulk_insert(
            connection,
            self._store.tables.published,
            [{"topic": topic, "partition": part, "last_seq": last[(topic, part)]} for topic, part in sorted(touched)],
            update=["last_seq"],
        )
        # Nobody else counts under this term. If the commit fails, this is read again before anything goes out.
        self._last = last
        return numbered

    async def _partitions(self, topic: str) -> int:
        assert self._producer is not None
        with kafka_errors(f"asking for the partitions of {topic}"):
            return len(await self._producer.partitions_for(self._prefix + topic))

    async def _last_sequences(self, connection: AsyncConnection) -> dict[tuple[str, int], int]:
        found = await connection.execute(sa.select(self._store.tables.published))
        return {(row.topic, row.partition): row.last_seq for row in found}

    async def _publish(self, rows: Sequence[Numbered]) -> None:
        """All or none becomes visible. Raises Retryable: what happened is unknown, the same rows go out again."""
        assert self._producer is not None
        began = time.perf_counter()
        with kafka_errors(f"publishing {len(rows)} events of {self._store.schema}"):
            # A failure leaves the transaction open: the next producer with our id ends it when it begins. Ending it
            # here would mean waiting for brokers that just failed us.
            async with asyncio.timeout(self._limit_seconds):
                await self._producer.begin_transaction()
                sent = [
                    await self._producer.send(
                        self._prefix + row.topic,
                        partition=row.partition,
                        key=row.key.encode(),
                        value=row.value,
                        headers=_headers(row),
                    )
                    for row in rows
                ]
                await asyncio.gather(*sent)
                await self._producer.commit_transaction()
        metrics, schema = self._store.metrics, self._store.schema
        metrics.histogram(PUBLISH_DURATION).record(time.perf_counter() - began, service=schema)
        for topic, count in Counter(row.topic for row in rows).items():
            metrics.counter(RELAY_EVENTS).add(count, service=schema, topic=topic)

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)


async def _finishing(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when cancelled, let it come to its end first, within reason: what is published and not
    struck goes out again, which readers without our deduplication would see."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_FINISH_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what counts
        raise


def _row(row: Any, partition: int, publish_seq: int) -> Numbered:
    return Numbered(row.id, row.topic, row.key, row.headers, row.value, partition, publish_seq)


def _headers(row: Numbered) -> list[tuple[str, bytes]]:
    headers: dict[str, str] = json.loads(row.headers)
    headers["yard_publishseq"] = str(row.publish_seq)
    return [(name, text.encode()) for name, text in headers.items()]
