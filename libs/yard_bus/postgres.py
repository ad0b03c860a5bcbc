"""The embedded bus: the outbox IS the log.

A unit of work appends at its end; the function `yard_bus.append` locks the partition rows in sorted order, numbers the
records and holds the locks until the commit, so offsets become visible in order and without gaps. One NOTIFY per
transaction wakes readers; a lost LISTEN connection ends the session, and the next one catches up from its offsets.

A group has one active member: it holds a session advisory lock, which PostgreSQL frees when the member's connection
ends, however it dies. A member that lost its connection without noticing is fenced by offsets and terms.
"""

import asyncio
import json
import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from yard_bus.protocol import OffsetGone, PartitionRef, Record
from yard_domain.errors import Retryable
from yard_events.envelope import Envelope
from yard_events.partitioner import partition_for
from yard_events.registry import Topic
from yard_store.database_errors import database_errors, is_retryable
from yard_store.migrations import migrate
from yard_store.ports import Clock, EventAppender, Ids
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import Store

SCHEMA = "yard_bus"
CHANNEL = "yard_bus"

_APPEND = sa.text(
    "SELECT yard_bus.append(:topics, :partitions, :keys, :types, :headers, CAST(:values AS bytea[]), :at)"
).bindparams(
    sa.bindparam("topics", type_=ARRAY(sa.Integer)),
    sa.bindparam("partitions", type_=ARRAY(sa.Integer)),
    sa.bindparam("keys", type_=ARRAY(sa.Text)),
    sa.bindparam("types", type_=ARRAY(sa.Text)),
    sa.bindparam("headers", type_=ARRAY(sa.Text)),
    sa.bindparam("values", type_=ARRAY(sa.LargeBinary)),
    sa.bindparam("at", type_=sa.TIMESTAMP(timezone=True)),
)
_ENSURE_TOPIC = sa.text("SELECT yard_bus.ensure_topic(:name, :partitions, :policy, :retention, :incarnation)")
_READ = """
SELECT log_offset, key, type, headers, value FROM yard_bus.log
WHERE topic_id = $1 AND partition = $2 AND log_offset >= $3 ORDER BY log_offset LIMIT $4
"""
_BOUNDS = "SELECT first_offset, next_offset FROM yard_bus.partition WHERE topic_id = $1 AND partition = $2"
_ENDS = sa.text("SELECT topic_id, partition, next_offset FROM yard_bus.partition")
_TOPICS = sa.text("SELECT topic_id, name, partitions, incarnation FROM yard_bus.topic ORDER BY topic_id")


class _StoredTopic:
    """A topic as the database has it; its partition count rules over the registry's."""

    __slots__ = ("incarnation", "name", "partitions", "topic_id")

    def __init__(self, row: Any) -> None:
        self.topic_id: int = row["topic_id"]
        self.name: str = row["name"]
        self.partitions: int = row["partitions"]
        self.incarnation: str = row["incarnation"]


class PostgresBus:
    """Implements `yard_bus.protocol.Bus` on one PostgreSQL database."""

    def __init__(self, engine: AsyncEngine, *, clock: Clock, ids: Ids) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._topics: dict[str, _StoredTopic] = {}

    @property
    def shared(self) -> bool:
        """One instance of a service at a time holds its group, and one process writes its tables."""
        return False

    def appender(self, tables: ServiceTables) -> EventAppender:
        """The log itself."""
        return self

    def relay(self, store: Store) -> None:
        """What is appended is published."""

    async def migrate(self) -> None:
        await migrate(self._engine, SCHEMA, Path(__file__).parent / "migrations")

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        with database_errors():
            async with self._engine.begin() as connection:
                # One order everywhere: processes that start together must not wait for one another in a circle.
                for topic in sorted(topics, key=lambda topic: topic.name):
                    await connection.execute(
                        _ENSURE_TOPIC,
                        {
                            "name": topic.name,
                            "partitions": topic.partitions,
                            "policy": topic.policy.value,
                            "retention": topic.retention_seconds,
                            "incarnation": self._ids.new("topic"),
                        },
                    )
        await self.load_topics()

    async def load_topics(self) -> None:
        with database_errors():
            async with self._engine.connect() as connection:
                found = await connection.execute(_TOPICS)
                self._topics = {row["name"]: _StoredTopic(row) for row in found.mappings()}

    async def append(self, connection: AsyncConnection, events: Sequence[Envelope], now: datetime) -> None:
        if not events:
            return
        stored = [self._topic(event.topic) for event in events]
        await connection.execute(
            _APPEND,
            {
                "topics": [topic.topic_id for topic in stored],
                "partitions": [partition_for(e.key, topic.partitions) for e, topic in zip(events, stored, strict=True)],
                "keys": [event.key for event in events],
                "types": [event.type for event in events],
                "headers": [json.dumps(event.headers(), separators=(",", ":")) for event in events],
                "values": [event.value for event in events],
                "at": now,
            },
        )

    async def publish(self, events: Sequence[Envelope]) -> None:
        with database_errors():
            async with self._engine.begin() as connection:
                await self.append(connection, events, self._clock.now())

    @asynccontextmanager
    async def session(self, group: str | None, topics: Sequence[str]) -> AsyncGenerator["PostgresSession"]:
        listener = await self._connect()
        session = PostgresSession(self._engine, listener, [self._topic(name) for name in topics])
        try:
            with database_errors():
                listener.add_termination_listener(session.on_lost)
                await listener.add_listener(CHANNEL, session.on_notify)
                if group is not None:
                    # Waits for as long as another instance is active; no polling, and no lease to renew.
                    await listener.execute("SELECT pg_advisory_lock($1, $2)", *_lock_key(group))
            yield session
        finally:
            session.end("the session was closed")
            listener.remove_termination_listener(session.on_lost)
            await _close(listener)

    async def close(self) -> None:
        """Nothing of its own to close: connections belong to the engine and to sessions."""

    def _topic(self, name: str) -> _StoredTopic:
        try:
            return self._topics[name]
        except KeyError:
            raise LookupError(f"topic {name} does not exist; ensure_topics creates it") from None

    async def _connect(self) -> Any:
        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        driver: Any = asyncpg
        with database_errors():
            return await driver.connect(url, timeout=10, server_settings={"application_name": "yard_bus listener"})


class PostgresSession:
    """Implements `yard_bus.protocol.Session`."""

    def __init__(self, engine: AsyncEngine, listener: Any, topics: Sequence[_StoredTopic]) -> None:
        self._engine = engine
        self._listener = listener
        self._topic_ids = {topic.name: topic.topic_id for topic in topics}
        self._refs = frozenset(
            PartitionRef(topic.name, number, topic.incarnation)
            for topic in topics
            for number in range(topic.partitions)
        )
        self._waiting: dict[tuple[int, int], set[asyncio.Event]] = defaultdict(set)
        self._consumed: dict[PartitionRef, int] = {}
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_notify(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        """Payload: `topic_id.partition` of every partition that grew, separated by commas."""
        for part in str(payload).split(","):
            topic_id, _, partition = part.partition(".")
            for waiter in self._waiting.get((int(topic_id), int(partition)), ()):
                waiter.set()

    def on_lost(self, _connection: Any) -> None:
        self.end("the LISTEN connection was lost")

    def end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.set()

    async def assignments(self) -> AsyncIterator[frozenset[PartitionRef]]:
        yield self._refs
        raise Retryable(await asyncio.shield(self._over))

    async def read(self, ref: PartitionRef, offset: int | None, limit: int) -> list[Record]:
        place = (self._topic_ids[ref.topic], ref.partition)
        self._consumed[ref] = offset or 0
        waiter = asyncio.Event()
        self._waiting[place].add(waiter)
        try:
            while not self._over.done():
                waiter.clear()
                records = await self._fetch(ref, place, offset, limit)
                if records:
                    return records
                if not self._over.done():
                    await waiter.wait()
            raise Retryable(self._over.result())
        finally:
            self._waiting[place].discard(waiter)

    async def lag(self) -> dict[tuple[str, int], int]:
        with database_errors():
            async with self._engine.connect() as connection:
                found = await connection.execute(_ENDS)
                ends = {(row.topic_id, row.partition): row.next_offset for row in found}
        places = {ref: (self._topic_ids[ref.topic], ref.partition) for ref in self._consumed}
        return {
            (ref.topic, ref.partition): max(ends[places[ref]] - consumed, 0)
            for ref, consumed in self._consumed.items()
            if places[ref] in ends
        }

    async def _fetch(self, ref: PartitionRef, place: tuple[int, int], offset: int | None, limit: int) -> list[Record]:
        with database_errors():
            async with self._engine.connect() as connection:
                raw = await _driver(connection)
                try:
                    found = await raw.fetch(_READ, *place, offset or 0, limit)
                    if offset is not None and (not found or found[0]["log_offset"] != offset):
                        await self._check_bounds(raw, ref, place, offset)
                except asyncio.CancelledError:
                    # What became of the statement is not known here, and the pool does not ask: not for others.
                    await connection.invalidate()
                    raise
                finally:
                    if raw.is_closed():
                        # The pool learns of dead connections from its own statements only; these go past it.
                        await connection.invalidate()
        return [
            Record(ref, row["log_offset"], row["key"], row["type"], json.loads(row["headers"]), row["value"])
            for row in found
        ]

    async def _check_bounds(self, raw: Any, ref: PartitionRef, place: tuple[int, int], offset: int) -> None:
        """An empty read is normal at the head of the log; anywhere else records were lost. Compaction leaves gaps."""
        bounds = await raw.fetchrow(_BOUNDS, *place)
        if bounds is None:
            raise OffsetGone(f"{ref.topic}/{ref.partition} does not exist any more")
        if not bounds["first_offset"] <= offset <= bounds["next_offset"]:
            raise OffsetGone(
                f"{ref.topic}/{ref.partition}: offset {offset} is outside of "
                f"[{bounds['first_offset']}, {bounds['next_offset']}]"
            )


async def _driver(connection: AsyncConnection) -> Any:
    """The asyncpg connection under a SQLAlchemy one, outside of any transaction: for single reads on the hot path."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    return driver


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=2)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if not is_retryable(error):
            raise
        connection.terminate()


def _lock_key(group: str) -> tuple[int, int]:
    """Two signed 32-bit integers: our namespace and the group's hash."""
    return 0x59415244, zlib.crc32(group.encode()) - 2**31
