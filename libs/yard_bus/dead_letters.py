"""Parked keys: records that can never be handled, and everything of their key that came after them.

The rows are what is tried again or discarded; the dead-letter topic tells the world what was parked and how it ended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.protocol import PartitionRef, Record
from yard_events.dead_letters import (
    PARKED_TYPE,
    QUEUED_BEHIND,
    RESOLVED_TYPE,
    DeadLetterOutcome,
    DeadLetterResolved,
    Origin,
)
from yard_events.envelope import MAX_KEY_BYTES, MAX_VALUE_BYTES, Envelope
from yard_events.registry import dead_letter_topic
from yard_obs.catalogue import DESTINATION, MESSAGE_ID
from yard_obs.tracing import sent
from yard_store.bulk import bulk_delete, bulk_insert
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import UnitOfWork

PARKED_NEWS = "parked"
"""Somebody decided what becomes of a parked key."""

MAX_ERROR_CHARACTERS = 2000
_HEADERS = 50


@dataclass(frozen=True, slots=True, order=True)
class OfKey:
    """One key in one partition."""

    topic: str
    partition: int
    key: str


async def load_parked_keys(connection: AsyncConnection, tables: ServiceTables, ref: PartitionRef) -> set[str]:
    t = tables.parked
    found = await connection.execute(
        sa.select(t.c.key).distinct().where(t.c.topic == ref.topic, t.c.partition == ref.partition)
    )
    return {row.key for row in found}


async def park(uow: UnitOfWork, tables: ServiceTables, records: Sequence[Record], error: str | None) -> None:
    """Keep the records with their bytes and origin; `error` is None for those that only queue behind a failed one."""
    reason = None if error is None else storable(error)
    await bulk_insert(
        uow.connection,
        tables.parked,
        [
            {
                "topic": record.ref.topic,
                "partition": record.ref.partition,
                "log_offset": record.offset,
                "key": record.key,
                "type": record.type,
                "headers": json.dumps(record.headers),
                "value": record.value,
                "error": reason,
                "parked_at": uow.now,
            }
            for record in records
        ],
        ignore_existing=True,
    )
    for record in records:
        _tell(uow, tables, record.ref.topic, _dead_letter(uow, tables.schema, record, reason))


def storable(error: str) -> str:
    """An error's text as a column and a header can hold it."""
    text = error if len(error) <= MAX_ERROR_CHARACTERS else error[:MAX_ERROR_CHARACTERS] + " …"
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _tell(uow: UnitOfWork, tables: ServiceTables, topic: str, event: Envelope) -> None:
    """Except about records of the service's own dead-letter topic. It would come back with the same key, be parked
    behind the first, and so on without end; and whoever follows that topic has seen them anyway."""
    if topic != event.topic:
        uow.emit_raw(event)


def _dead_letter(uow: UnitOfWork, service: str, record: Record, error: str | None) -> Envelope:
    """The value is the record's own bytes, whatever they are; its headers travel under a prefix. Of a stranger's record
    that is larger than ours may be, only the beginning travels: the table has all of it."""
    cut = {"yard_dlq_cut": "true"} if len(record.value) > MAX_VALUE_BYTES or len(record.key) > MAX_KEY_BYTES else {}
    origin = Origin(record.ref.topic, record.ref.partition, record.offset)
    return Envelope(
        topic=dead_letter_topic(service),
        key=record.key[:MAX_KEY_BYTES],
        id=uow.new_id("evt"),
        type=PARKED_TYPE,
        source=f"yard/{service}",
        subject=record.key[:MAX_KEY_BYTES],
        time=uow.now,
        value=record.value[:MAX_VALUE_BYTES],
        extra=origin.headers()
        | {"yard_dlq_error": error or QUEUED_BEHIND}
        | {f"yard_dlq_header_{name[:200]}": text[:4000] for name, text in list(record.headers.items())[:_HEADERS]}
        | cut,
    )


def _resolved(uow: UnitOfWork, service: str, key: OfKey, offset: int, end: DeadLetterResolved) -> Envelope:
    """Continues the trace of what resolved it: the retry's, or the request to discard it."""
    topic, event_id = dead_letter_topic(service), uow.new_id("evt")
    trace = sent(topic, {DESTINATION: topic, MESSAGE_ID: event_id}, None)
    return Envelope(
        topic=topic,
        key=key.key,
        id=event_id,
        type=RESOLVED_TYPE,
        source=f"yard/{service}",
        subject=key.key,
        time=uow.now,
        value=end.model_dump_json(exclude_none=True).encode(),
        extra=Origin(key.topic, key.partition, offset).headers() | trace,
    )


# --- what somebody decides -------------------------------------------------------------------------------------------


async def list_parked(
    connection: AsyncConnection, tables: ServiceTables, *, limit: int, key: str | None = None
) -> list[dict[str, Any]]:
    """The oldest parked records, without their bytes: those with an error first in their key."""
    t = tables.parked
    columns = [c for c in t.c if c.name not in ("value", "headers")]
    statement = sa.select(*columns, sa.func.octet_length(t.c.value).label("value_bytes"))
    if key is not None:
        statement = statement.where(t.c.key == key)
    found = await connection.execute(
        statement.order_by(t.c.parked_at, t.c.topic, t.c.partition, t.c.log_offset).limit(limit)
    )
    return [dict(row) for row in found.mappings()]


async def show_parked(
    connection: AsyncConnection, tables: ServiceTables, topic: str, partition: int, offset: int
) -> dict[str, Any] | None:
    """One record with headers (decoded) and value (bytes); None where there is none."""
    t = tables.parked
    where = (t.c.topic == topic, t.c.partition == partition, t.c.log_offset == offset)
    row = (await connection.execute(sa.select(t).where(*where))).mappings().first()
    return None if row is None else dict(row) | {"headers": json.loads(row["headers"])}


async def count_parked(connection: AsyncConnection, tables: ServiceTables, *, key: str | None = None) -> int:
    """How many records are parked, of all keys or of one."""
    t = tables.parked
    statement = sa.select(sa.func.count()).select_from(t)
    return await connection.scalar(statement if key is None else statement.where(t.c.key == key)) or 0


async def count_behind(connection: AsyncConnection, tables: ServiceTables, key: OfKey, offset: int) -> int:
    """How many parked records of the key came after this one."""
    t = tables.parked
    statement = sa.select(sa.func.count()).where(*_of(t, key), t.c.log_offset > offset)
    return await connection.scalar(statement) or 0


async def request_retry(uow: UnitOfWork, tables: ServiceTables, key: OfKey) -> int:
    """Have the service try the key again, all of it, in order. Returns how many records wait; 0: none, nothing done."""
    return await _request(uow, tables, _of(tables.parked, key))


async def request_retries(uow: UnitOfWork, tables: ServiceTables, *, key: str | None = None) -> int:
    """The same for everything that is parked, or for one key in all topics. Returns how many records wait."""
    return await _request(uow, tables, () if key is None else (tables.parked.c.key == key,))


async def _request(uow: UnitOfWork, tables: ServiceTables, where: tuple[sa.ColumnElement[bool], ...]) -> int:
    statement = sa.update(tables.parked).where(*where).values(retry_requested_at=uow.now)
    uow.tell(PARKED_NEWS, "")
    return (await uow.connection.execute(statement)).rowcount


async def discard(uow: UnitOfWork, tables: ServiceTables, key: OfKey, offset: int, *, by: str | None = None) -> bool:
    """Drop one parked record for good; what is queued behind it is tried. False where there is none."""
    t = tables.parked
    gone = await uow.connection.execute(sa.delete(t).where(*_of(t, key), t.c.log_offset == offset))
    if gone.rowcount:
        end = DeadLetterResolved(outcome=DeadLetterOutcome.DISCARDED, discarded_by=by)
        _tell(uow, tables, key.topic, _resolved(uow, tables.schema, key, offset, end))
        await request_retry(uow, tables, key)
    return bool(gone.rowcount)


# --- what the consumer does about it ---------------------------------------------------------------------------------


async def requested_keys(connection: AsyncConnection, tables: ServiceTables) -> list[OfKey]:
    """Keys that somebody wants tried, and those whose oldest record waits behind nothing: what it waited for was
    handled or discarded while it came."""
    t = tables.parked
    place = (t.c.topic, t.c.partition, t.c.key)
    requested = sa.select(*place).where(t.c.retry_requested_at.is_not(None))
    oldest = sa.select(*place, t.c.error).distinct(*place).order_by(*place, t.c.log_offset).subquery()
    free = sa.select(oldest.c.topic, oldest.c.partition, oldest.c.key).where(oldest.c.error.is_(None))
    return sorted(OfKey(*row) for row in await connection.execute(requested.union(free)))


async def parked_keys(connection: AsyncConnection, tables: ServiceTables) -> dict[tuple[str, int], set[str]]:
    t = tables.parked
    found: dict[tuple[str, int], set[str]] = {}
    for topic, partition, key in await connection.execute(sa.select(t.c.topic, t.c.partition, t.c.key).distinct()):
        found.setdefault((topic, partition), set()).add(key)
    return found


async def next_parked(connection: AsyncConnection, tables: ServiceTables, key: OfKey) -> Record | None:
    """The key's oldest parked record, held to the end of the transaction."""
    t = tables.parked
    statement = sa.select(t).where(*_of(t, key)).order_by(t.c.log_offset).limit(1).with_for_update()
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    ref = PartitionRef(key.topic, key.partition, "")
    return Record(ref, row.log_offset, row.key, row.type, json.loads(row.headers), row.value)


async def handled(uow: UnitOfWork, tables: ServiceTables, record: Record) -> None:
    """A retry had its effect: the record is parked no longer."""
    row = {"topic": record.ref.topic, "partition": record.ref.partition, "log_offset": record.offset}
    await bulk_delete(uow.connection, tables.parked, [row])
    end = DeadLetterResolved(outcome=DeadLetterOutcome.HANDLED)
    key = OfKey(record.ref.topic, record.ref.partition, record.key)
    _tell(uow, tables, key.topic, _resolved(uow, tables.schema, key, record.offset, end))


async def give_up_again(uow: UnitOfWork, tables: ServiceTables, record: Record, error: str) -> None:
    """It failed once more, with this error; the key waits for the next decision.

    Unless it was discarded meanwhile: that was the next decision, and what is behind it is to be tried.
    """
    t = tables.parked
    key = OfKey(record.ref.topic, record.ref.partition, record.key)
    reason = storable(error)
    failed = sa.update(t).where(*_of(t, key), t.c.log_offset == record.offset).values(error=reason)
    if not (await uow.connection.execute(failed)).rowcount:
        return
    await uow.connection.execute(sa.update(t).where(*_of(t, key)).values(retry_requested_at=None))
    _tell(uow, tables, key.topic, _dead_letter(uow, tables.schema, record, reason))


def _of(table: sa.Table, key: OfKey) -> tuple[sa.ColumnElement[bool], ...]:
    return (table.c.topic == key.topic, table.c.partition == key.partition, table.c.key == key.key)
