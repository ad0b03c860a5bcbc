"""Parked keys: records that can never be handled, and everything of their key that came after them."""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.protocol import PartitionRef, Record
from yard_store.bulk import bulk_insert
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import UnitOfWork


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
