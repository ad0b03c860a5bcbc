"""Bulk statements: one round trip for any number of rows, bound as one array per column."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

_DIALECT = postgresql.dialect()


def _type_name(column: sa.Column[Any]) -> str:
    return column.type.compile(dialect=_DIALECT)


@lru_cache(maxsize=256)
def _insert_sql(table: sa.Table, names: tuple[str, ...], update: tuple[str, ...] | None, ignore: bool) -> sa.TextClause:
    columns = [table.c[name] for name in names]
    target = f"{table.schema}.{table.name}" if table.schema else table.name
    arrays = ", ".join(f"CAST(:p_{c.name} AS {_type_name(c)}[])" for c in columns)
    quoted = ", ".join(f'"{name}"' for name in names)
    sql = f"INSERT INTO {target} ({quoted}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names come from our tables
    keys = ", ".join(f'"{c.name}"' for c in table.primary_key.columns)
    if ignore:
        sql += f" ON CONFLICT ({keys}) DO NOTHING"
    elif update is not None:
        sql += f" ON CONFLICT ({keys}) DO UPDATE SET " + ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in update)
    return _typed(sql, columns)


@lru_cache(maxsize=256)
def _update_sql(table: sa.Table, names: tuple[str, ...]) -> sa.TextClause:
    keys = [c.name for c in table.primary_key.columns]
    columns = [table.c[name] for name in names]
    target = f"{table.schema}.{table.name}" if table.schema else table.name
    arrays = ", ".join(f"CAST(:p_{c.name} AS {_type_name(c)}[])" for c in columns)
    alias = ", ".join(f'"{name}"' for name in names)
    sets = ", ".join(f'"{name}" = u."{name}"' for name in names if name not in keys)
    match = " AND ".join(f't."{name}" = u."{name}"' for name in keys)
    sql = f"UPDATE {target} t SET {sets} FROM unnest({arrays}) AS u({alias}) WHERE {match}"  # noqa: S608 - as above
    return _typed(sql, columns)


@lru_cache(maxsize=64)
def _delete_sql(table: sa.Table) -> sa.TextClause:
    columns = list(table.primary_key.columns)
    target = f"{table.schema}.{table.name}" if table.schema else table.name
    arrays = ", ".join(f"CAST(:p_{c.name} AS {_type_name(c)}[])" for c in columns)
    alias = ", ".join(f'"{c.name}"' for c in columns)
    match = " AND ".join(f't."{c.name}" = u."{c.name}"' for c in columns)
    return _typed(f"DELETE FROM {target} t USING unnest({arrays}) AS u({alias}) WHERE {match}", columns)  # noqa: S608


def _typed(sql: str, columns: Sequence[sa.Column[Any]]) -> sa.TextClause:
    return sa.text(sql).bindparams(
        *(sa.bindparam(f"p_{c.name}", type_=postgresql.ARRAY(_element(c.type), dimensions=1)) for c in columns)
    )


def _element(kind: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """None is SQL's NULL in every column, also in JSONB, where SQLAlchemy would write the JSON value null."""
    return postgresql.JSONB(none_as_null=True) if isinstance(kind, postgresql.JSONB) else kind


def _arrays(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {f"p_{name}": [row[name] for row in rows] for name in names}


async def bulk_insert(
    connection: AsyncConnection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    update: Sequence[str] | None = None,
    ignore_existing: bool = False,
) -> int:
    """Insert rows, all with the same columns as the first; returns how many were written.

    `update`: on a primary-key conflict overwrite these columns; a key must not come twice in one call.
    `ignore_existing`: on a conflict leave the old row. Array-typed columns cannot be bound this way (PostgreSQL's
    unnest flattens them): keep such data in JSONB.
    """
    if not rows:
        return 0
    names = tuple(rows[0])
    statement = _insert_sql(table, names, tuple(update) if update is not None else None, ignore_existing)
    result = await connection.execute(statement, _arrays(names, rows))
    return result.rowcount


async def bulk_update(connection: AsyncConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Update rows by primary key, all with the same columns as the first; returns how many were matched."""
    if not rows:
        return 0
    names = tuple(rows[0])
    result = await connection.execute(_update_sql(table, names), _arrays(names, rows))
    return result.rowcount


async def bulk_delete(connection: AsyncConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Delete rows by primary key; other columns in `rows` are ignored. Returns how many there were."""
    if not rows:
        return 0
    names = [column.name for column in table.primary_key.columns]
    result = await connection.execute(_delete_sql(table), _arrays(names, rows))
    return result.rowcount


def any_of(column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """`column = ANY(:array)`: one statement text for any number of values, so that it is prepared once."""
    return column == sa.any_(sa.bindparam(None, list(values), type_=postgresql.ARRAY(column.type), unique=True))
