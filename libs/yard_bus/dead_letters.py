"""Parked keys: records that can never be handled, and everything of their key that came after them.

The rows are what is tried again or discarded; the dead-letter topic tells the world.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.protocol import PartitionRef, Record
from yard_events.envelope import Envelope
from yard_events.registry import dead_letter_topic
from yard_store.bulk import bulk_insert
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import UnitOfWork

PARKED_NEWS = "parked"
"""Somebody decided what becomes of a parked key."""

DEAD_LETTER_TYPE = "yard.dlq.parked.v1"


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
                "error": error,
                "parked_at": uow.now,
            }
            for record in records
        ],
        ignore_existing=True,
    )
    for record in records:
        uow.emit_raw(_dead_letter(uow, tables.schema, record, error))


def _dead_letter(uow: UnitOfWork, service: str, record: Record, error: str | None) -> Envelope:
    """The value is the record's own bytes, whatever they are; its headers travel under a prefix."""
    origin = {
        "yard_dlq_topic": record.ref.topic,
        "yard_dlq_partition": str(record.ref.partition),
        "yard_dlq_offset": str(record.offset),
        "yard_dlq_error": error or "queued behind an earlier record of its key",
    }
    return Envelope(
        topic=dead_letter_topic(service),
        key=record.key,
        id=uow.new_id("evt"),
        type=DEAD_LETTER_TYPE,
        source=f"yard/{service}",
        subject=record.key,
        time=uow.now,
        value=record.value,
        extra=origin | {f"yard_dlq_header_{name}": text for name, text in record.headers.items()},
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


async def request_retry(uow: UnitOfWork, tables: ServiceTables, key: OfKey) -> int:
    """Have the service try the key again, all of it, in order. Returns how many records wait; 0: none, nothing done."""
    t = tables.parked
    statement = sa.update(t).where(*_of(t, key)).values(retry_requested_at=uow.now)
    uow.tell(PARKED_NEWS, key.key)
    return (await uow.connection.execute(statement)).rowcount


async def discard(uow: UnitOfWork, tables: ServiceTables, key: OfKey, offset: int) -> bool:
    """Drop one parked record for good; what is queued behind it is tried. False where there is none."""
    t = tables.parked
    gone = await uow.connection.execute(sa.delete(t).where(*_of(t, key), t.c.log_offset == offset))
    if gone.rowcount:
        await request_retry(uow, tables, key)
    return bool(gone.rowcount)


# --- what the consumer does about it ---------------------------------------------------------------------------------


async def requested_keys(connection: AsyncConnection, tables: ServiceTables) -> list[OfKey]:
    t = tables.parked
    statement = sa.select(t.c.topic, t.c.partition, t.c.key).where(t.c.retry_requested_at.is_not(None)).distinct()
    return sorted(OfKey(*row) for row in await connection.execute(statement))


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


async def give_up_again(uow: UnitOfWork, tables: ServiceTables, key: OfKey, error: str) -> None:
    """The oldest failed once more, with this error; the key waits for the next decision."""
    t = tables.parked
    await uow.connection.execute(sa.update(t).where(*_of(t, key)).values(retry_requested_at=None))
    oldest = sa.select(sa.func.min(t.c.log_offset)).where(*_of(t, key)).scalar_subquery()
    await uow.connection.execute(sa.update(t).where(*_of(t, key), t.c.log_offset == oldest).values(error=error))


def _of(table: sa.Table, key: OfKey) -> tuple[sa.ColumnElement[bool], ...]:
    return (table.c.topic == key.topic, table.c.partition == key.partition, table.c.key == key.key)
