"""Usage of any stretch of time, summed by the database in integer microseconds.

Spans are cut to [since, until) exactly, so the sums over any partition of a stretch add up to the sum over all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

Dimension = Literal["project", "queue", "job", "model"]

_COLUMNS: dict[Dimension, str] = {"project": "project_id", "queue": "queue", "job": "job_id", "model": "model"}
_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)
_END = datetime(9999, 12, 30, tzinfo=UTC)

# The dimension and the filters come from the table above and from `_filters`, never from a caller.
_SUM = """
WITH span AS (
    SELECT project_id, queue, job_id, model, devices, since, until, false AS open
    FROM billing.usage_lines WHERE until > :since AND since < :until {filters}
  UNION ALL
    SELECT project_id, queue, job_id, d.key, d.value::int, open_since, CAST(:as_of AS timestamptz), true
    FROM billing.accounts CROSS JOIN LATERAL jsonb_each_text(devices) d
    WHERE open_since IS NOT NULL AND open_since < :until {filters}
), cut AS (
    SELECT *, greatest(since, CAST(:since AS timestamptz)) AS first, least(until, CAST(:until AS timestamptz)) AS last
    FROM span
), priced AS (
    SELECT *, devices * (extract(epoch FROM last - first) * 1000000)::bigint AS micros FROM cut WHERE last > first
)
SELECT grouping({dimension}) AS is_total, {dimension} AS name, coalesce(sum(micros), 0) AS micros,
       coalesce(sum(micros) FILTER (WHERE open), 0) AS open_micros, count(DISTINCT job_id) AS jobs
FROM priced GROUP BY GROUPING SETS (({dimension}), ()) ORDER BY is_total, micros DESC, name
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Device-µs of one group; `open_micros` is the part of `micros` whose spans still run. `name` None: the total."""

    name: str | None
    micros: int
    open_micros: int
    jobs: int


async def usage(
    connection: AsyncConnection,
    *,
    group_by: Dimension,
    as_of: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    projects: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    jobs: Sequence[str] | None = None,
) -> tuple[list[Usage], Usage]:
    """(groups, most used first; their total). Running spans count up to `as_of`. A filter of None lets all through, of
    [] nothing."""
    wanted = {"project_id": projects, "queue": queues, "job_id": jobs}
    filters = {column: list(values) for column, values in wanted.items() if values is not None}
    statement = sa.text(_SUM.format(dimension=_COLUMNS[group_by], filters=_filters(filters)))
    statement = statement.bindparams(
        *(sa.bindparam(f"f_{column}", type_=ARRAY(sa.Text)) for column in filters),
        *(sa.bindparam(name, type_=sa.TIMESTAMP(timezone=True)) for name in ("since", "until", "as_of")),
    )
    values: dict[str, Any] = {f"f_{column}": names for column, names in filters.items()}
    values |= {"since": since or _BEGINNING, "until": until or _END, "as_of": as_of}
    rows = (await connection.execute(statement, values)).all()
    found = [Usage(row.name, int(row.micros), int(row.open_micros), row.jobs) for row in rows]
    return found[:-1], found[-1]


def _filters(filters: dict[str, list[str]]) -> str:
    return "".join(f" AND {column} = ANY(:f_{column})" for column in filters)
