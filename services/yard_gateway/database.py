"""Reads of the public API: single statements, each its own snapshot, without the round trips of a transaction."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from yard_gateway.tables import COUNTERS
from yard_store.database_errors import database_errors


class Reads:
    """Runs single read statements. Every method raises Retryable while the database is away."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")

    async def rows(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> list[Any]:
        with database_errors():
            async with self._engine.connect() as connection:
                return list((await connection.execute(statement, values or {})).all())


async def take_numbers(connection: AsyncConnection, counter: str, count: int) -> int:
    """The first of `count` consecutive numbers. The counter stays locked until the transaction ends, so whoever sees a
    number sees all below it: a reader that goes on from the last number it saw skips nothing."""
    statement = (
        sa.update(COUNTERS)
        .where(COUNTERS.c.name == counter)
        .values(last_value=COUNTERS.c.last_value + count)
        .returning(COUNTERS.c.last_value)
    )
    last = await connection.scalar(statement)
    assert last is not None
    return int(last) - count + 1
