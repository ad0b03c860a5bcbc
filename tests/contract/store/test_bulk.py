"""Bulk statements on every column type that the services use."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel.sql.sqltypes import AutoString

from yard_runtime.service import Runtime
from yard_store.bulk import any_of, bulk_delete, bulk_insert, bulk_update

TABLE = sa.Table(
    "every_type",
    sa.MetaData(schema="bulk"),
    sa.Column("k", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("words", AutoString),
    sa.Column("short", sa.String(20)),
    sa.Column("small", sa.SmallInteger),
    sa.Column("number", sa.Integer),
    sa.Column("big", sa.BigInteger),
    sa.Column("real", sa.Float),
    sa.Column("exact", sa.Numeric(20, 6)),
    sa.Column("flag", sa.Boolean),
    sa.Column("at", sa.TIMESTAMP(timezone=True)),
    sa.Column("document", JSONB),
    sa.Column("raw", sa.LargeBinary),
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

VALUES: dict[str, list[Any]] = {
    "words": ["", "plain", "üñí ✓ 💥", 'quote " { } , \\ NULL', "NULL", "line\nbreak"],
    "short": ["", "x" * 20],
    "small": [0, -32768, 32767],
    "number": [0, -(2**31), 2**31 - 1],
    "big": [0, -(2**63), 2**63 - 1],
    "real": [0.0, -1.5, 1e300, 5e-324, float("inf")],
    "flag": [True, False],
    "at": [AT, AT.astimezone(timezone(timedelta(hours=-7))), datetime(1000, 1, 1, tzinfo=UTC), AT.replace(year=9998)],
    "document": [{}, [], {"a": [1, None, {"b": "ü"}]}, "text", 1, True, [1, [2]]],
    "raw": [b"", b"\x00\xff", b"text"],
}


@pytest.fixture
async def connection(runtime: Runtime) -> AsyncIterator[AsyncConnection]:
    async with runtime.engine.connect() as connection, connection.begin():
        await connection.execute(sa.text("CREATE SCHEMA bulk"))
        await connection.run_sync(TABLE.metadata.create_all)
        yield connection


def row(k: str, part: int = 0, **columns: Any) -> dict[str, Any]:
    return {"k": k, "part": part} | columns


async def stored(connection: AsyncConnection, *names: str) -> list[tuple[Any, ...]]:
    columns = [TABLE.c[name] for name in names]
    return [tuple(row) for row in await connection.execute(sa.select(*columns).order_by(TABLE.c.k, TABLE.c.part))]


@pytest.mark.parametrize("column", VALUES)
async def test_values_of_a_column_come_back(connection: AsyncConnection, column: str) -> None:
    values = [*VALUES[column], None]
    rows = [row(f"{n:03}", **{column: value}) for n, value in enumerate(values)]
    assert await bulk_insert(connection, TABLE, rows) == len(values)
    assert [value for (value,) in await stored(connection, column)] == values

    again = [row(f"{n:03}", **{column: value}) for n, value in enumerate(reversed(values))]
    assert await bulk_update(connection, TABLE, again) == len(values)
    assert [value for (value,) in await stored(connection, column)] == values[::-1]

    nulls = await connection.scalar(sa.select(sa.func.count()).where(TABLE.c[column].is_(None)).select_from(TABLE))
    assert nulls == 1, "None is NULL, also in a document column"


@pytest.mark.parametrize("column", ["words", "short", "small", "number", "big", "real", "flag", "at", "raw"])
async def test_any_of_finds_exactly_the_values_given(connection: AsyncConnection, column: str) -> None:
    values = VALUES[column]
    await bulk_insert(connection, TABLE, [row(f"{n:03}", **{column: value}) for n, value in enumerate(values)])
    for wanted in ([], values[:1], values):
        found = await connection.execute(sa.select(TABLE.c.k).where(any_of(TABLE.c[column], wanted)))
        expected = {f"{n:03}" for n, value in enumerate(values) if value in wanted}
        assert {k for (k,) in found} == expected


async def test_several_any_of_in_one_statement_do_not_mix(connection: AsyncConnection) -> None:
    await bulk_insert(connection, TABLE, [row(k, part) for k in "abc" for part in range(3)])
    both = sa.select(TABLE.c.k, TABLE.c.part).where(any_of(TABLE.c.k, ["a", "b"]), any_of(TABLE.c.part, [1]))
    assert {tuple(found) for found in await connection.execute(both)} == {("a", 1), ("b", 1)}


async def test_rows_keep_together_in_any_number_and_column_order(connection: AsyncConnection) -> None:
    rows = [{"number": n, "part": n % 7, "k": f"{n:04}", "words": str(n)} for n in range(2000)]
    assert await bulk_insert(connection, TABLE, rows) == 2000
    assert all(n == int(words) == int(k) for n, words, k in await stored(connection, "number", "words", "k"))
    assert await bulk_insert(connection, TABLE, []) == await bulk_update(connection, TABLE, []) == 0
    assert await bulk_delete(connection, TABLE, []) == 0


async def test_an_existing_key_is_an_error_left_alone_or_overwritten(connection: AsyncConnection) -> None:
    await bulk_insert(connection, TABLE, [row("a", number=1, words="old"), row("b", number=1, words="old")])
    new = [row("a", number=2, words="new"), row("c", number=2, words="new")]
    with pytest.raises(DBAPIError, match="unique"):
        async with connection.begin_nested():
            await bulk_insert(connection, TABLE, new)
    assert await bulk_insert(connection, TABLE, new, ignore_existing=True) == 1
    assert await stored(connection, "k", "number", "words") == [("a", 1, "old"), ("b", 1, "old"), ("c", 2, "new")]
    assert await bulk_insert(connection, TABLE, [row("b", number=3, words="newer")], update=["number"]) == 1
    assert await stored(connection, "k", "number", "words") == [("a", 1, "old"), ("b", 3, "old"), ("c", 2, "new")]


async def test_updates_touch_their_own_columns_and_rows_only(connection: AsyncConnection) -> None:
    await bulk_insert(connection, TABLE, [row(k, part, number=0, words="w") for k in "ab" for part in (1, 2)])
    assert await bulk_update(connection, TABLE, [row("a", 2, number=5), row("z", 9, number=9)]) == 1
    expected = [("a", 1, 0, "w"), ("a", 2, 5, "w"), ("b", 1, 0, "w"), ("b", 2, 0, "w")]
    assert await stored(connection, "k", "part", "number", "words") == expected


async def test_deletes_go_by_the_whole_key(connection: AsyncConnection) -> None:
    await bulk_insert(connection, TABLE, [row(k, part) for k in "ab" for part in (1, 2)])
    assert await bulk_delete(connection, TABLE, [row("a", 1, words="ignored"), row("b", 2), row("z", 1)]) == 2
    assert await stored(connection, "k", "part") == [("a", 2), ("b", 1)]
