"""Retention of the embedded log: old records of `delete` topics, and superseded ones of `compact` topics, go.

A record that some service has not consumed yet is never removed, however old: a consumer that lags finds everything
when it is back. Agents resume from their journals, and what they miss placement sends again.
"""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from yard_store.database_errors import database_errors

_LIMIT = 20_000
"""Records per statement: bounded work, so that appenders never wait long for the partition's row."""

_PARTITIONS = sa.text(
    "SELECT t.topic_id, t.name, t.policy, t.retention_seconds, p.partition, p.next_offset "
    "FROM yard_bus.topic t JOIN yard_bus.partition p USING (topic_id) ORDER BY t.topic_id, p.partition"
)
_DELETE_OLD = sa.text(
    "WITH gone AS (DELETE FROM yard_bus.log WHERE topic_id = :topic AND partition = :partition AND log_offset IN ("
    "  SELECT log_offset FROM yard_bus.log WHERE topic_id = :topic AND partition = :partition AND log_offset < :below"
    # A prefix, always: the first record that is young enough ends it, whatever clocks did afterwards.
    "    AND log_offset < coalesce((SELECT y.log_offset FROM yard_bus.log y WHERE y.topic_id = :topic "
    "      AND y.partition = :partition AND y.appended_at >= :before ORDER BY y.log_offset LIMIT 1), :below)"
    "  ORDER BY log_offset LIMIT :limit) RETURNING log_offset), "
    "moved AS (UPDATE yard_bus.partition SET first_offset = (SELECT max(log_offset) + 1 FROM gone) "
    "  WHERE topic_id = :topic AND partition = :partition AND EXISTS (SELECT 1 FROM gone)) "
    "SELECT count(*) FROM gone"
)
_COMPACT = sa.text(
    "DELETE FROM yard_bus.log l WHERE topic_id = :topic AND partition = :partition AND log_offset < :below "
    "AND appended_at < :before AND EXISTS (SELECT 1 FROM yard_bus.log n WHERE n.topic_id = l.topic_id "
    "  AND n.partition = l.partition AND n.key = l.key AND n.type = l.type AND n.log_offset > l.log_offset)"
)


async def consumed_below(engine: AsyncEngine, schemas: Sequence[str], topic: str, partition: int) -> int | None:
    """The lowest offset that some service still needs; None when no service consumes the partition."""
    lowest: list[int] = []
    async with engine.connect() as connection:
        for schema in schemas:
            columns = (
                sa.column("topic", sa.Text),
                sa.column("partition", sa.Integer),
                sa.column("next_offset", sa.BigInteger),
            )
            table = sa.table("offsets", *columns, schema=schema)
            statement = sa.select(table.c.next_offset).where(table.c.topic == topic, table.c.partition == partition)
            found = await connection.scalar(statement)
            if found is not None:
                lowest.append(found)
    return min(lowest, default=None)


async def service_schemas(engine: AsyncEngine) -> list[str]:
    """The schemas that have a table of consumed offsets."""
    statement = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'offsets' ORDER BY 1"
    async with engine.connect() as connection:
        return list((await connection.execute(sa.text(statement))).scalars())


async def apply_retention(engine: AsyncEngine, now: datetime) -> int:
    """One pass over all partitions; returns how many records went. Safe to run anywhere, at any time, twice."""
    removed = 0
    with database_errors():
        schemas = await service_schemas(engine)
        async with engine.connect() as connection:
            partitions = (await connection.execute(_PARTITIONS)).mappings().all()
        for row in partitions:
            needed = await consumed_below(engine, schemas, row["name"], row["partition"])
            values = {
                "topic": row["topic_id"],
                "partition": row["partition"],
                "below": row["next_offset"] if needed is None else min(needed, row["next_offset"]),
                "before": datetime.fromtimestamp(now.timestamp() - row["retention_seconds"], now.tzinfo),
            }
            async with engine.begin() as connection:
                if row["policy"] == "compact":
                    removed += (await connection.execute(_COMPACT, values)).rowcount
                else:
                    removed += await connection.scalar(_DELETE_OLD, values | {"limit": _LIMIT}) or 0
    return removed
