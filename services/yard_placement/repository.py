"""Reading and writing the ledger in bulk."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.errors import Conflict
from yard_domain.states import AttemptState
from yard_placement.ledger import ALLOCATION_FIELDS, ATTEMPT_FIELDS, Allocation, Attempt, NodeFacts, Waiting
from yard_placement.tables import TABLES, AllocationRow, AttemptRow, DeviceRow, NodeRow
from yard_store.bulk import bulk_insert, bulk_update

ATTEMPTS: sa.Table = AttemptRow.__table__  # type: ignore[attr-defined]
ALLOCATIONS: sa.Table = AllocationRow.__table__  # type: ignore[attr-defined]
DEVICES: sa.Table = DeviceRow.__table__  # type: ignore[attr-defined]
NODES: sa.Table = NodeRow.__table__  # type: ignore[attr-defined]

_ORDERS = ("attempt_id", "attention", "stop_reason", "stop_grace_seconds", "withdrawn", "stop_trace")
_PROGRESS = (
    "attempt_id",
    "state",
    "attention",
    "reason",
    "stop_reason",
    "stop_grace_seconds",
    "stop_sent",
    "started_sent",
    "lost_since",
    "ended_at",
)
_LIFE = (
    "allocation_id",
    "state",
    "outcome",
    "reason",
    "emptied",
    "billed_since",
    "lost_since",
    "lost_micros",
    "released_at",
)
_NEW_ATTEMPT = ATTEMPT_FIELDS[: ATTEMPT_FIELDS.index("reason")]
_NEW_ALLOCATION = ALLOCATION_FIELDS[: ALLOCATION_FIELDS.index("ready")]
"""The rest is what the tables begin with."""
_COMMAND = ("allocation_id", "command_seq", "command_type", "command", "commanded_at")

# A job's arguments may be large: they are read when there is something to start.
_ATTEMPT_COLUMNS = tuple(ATTEMPTS.c[name] for name in ATTEMPT_FIELDS)
_ATTEMPT_COLUMNS_LIGHT = tuple(
    sa.case((ATTEMPTS.c.state.in_(("preparing", "lost")), ATTEMPTS.c.spec), else_=None).label("spec")
    if name == "spec"
    else ATTEMPTS.c[name]
    for name in ATTEMPT_FIELDS
)
_ALLOCATION_COLUMNS = tuple(ALLOCATIONS.c[name] for name in ALLOCATION_FIELDS)
_WAITING_COLUMNS = (
    ATTEMPTS.c.attempt_id,
    ATTEMPTS.c.job_id,
    ATTEMPTS.c.project_id,
    ATTEMPTS.c.attempt,
    ATTEMPTS.c.pool_key,
    ATTEMPTS.c.pending_since,
    ATTEMPTS.c.reason,
    ATTEMPTS.c.spec["tasks"].label("tasks"),
    ATTEMPTS.c.trace,
    ATTEMPTS.c.correlation_id,
)


_TEXTS = ARRAY(sa.Text)


def _any(column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    return column == sa.any_(sa.bindparam(name, type_=_TEXTS))


# Built once: putting a statement together costs more than sending it.
_TASKS_OF = (
    sa.select(*_ALLOCATION_COLUMNS)
    .where(_any(ALLOCATIONS.c.attempt_id, "attempt_ids"))
    .order_by(ALLOCATIONS.c.attempt_id, ALLOCATIONS.c.task_rank)
)
_WANTING_ATTENTION = (
    sa.select(*_ATTEMPT_COLUMNS_LIGHT)
    .where(ATTEMPTS.c.pool_key == sa.bindparam("pool_key"), ATTEMPTS.c.attention)
    .order_by(ATTEMPTS.c.attempt_id)
    .limit(sa.bindparam("limit"))
)
_BY_ID = sa.select(*_ATTEMPT_COLUMNS).where(_any(ATTEMPTS.c.attempt_id, "attempt_ids"))
_WAITING = (
    sa.select(*_WAITING_COLUMNS)
    .where(ATTEMPTS.c.pool_key == sa.bindparam("pool_key"), ATTEMPTS.c.state == sa.literal_column("'pending'"))
    .where(~ATTEMPTS.c.withdrawn, ATTEMPTS.c.stop_reason.is_(None))
    .order_by(ATTEMPTS.c.priority.desc(), ATTEMPTS.c.submitted_at, ATTEMPTS.c.job_id)
    .limit(sa.bindparam("limit"))
)
_LIVE_ON = sa.select(*_ALLOCATION_COLUMNS).where(_any(ALLOCATIONS.c.node, "nodes"), ALLOCATIONS.c.released_at.is_(None))
_ATTEND_TO = (
    sa.update(ATTEMPTS)
    .where(
        ATTEMPTS.c.attempt_id.in_(
            sa.select(ALLOCATIONS.c.attempt_id).where(
                _any(ALLOCATIONS.c.node, "nodes"), ALLOCATIONS.c.released_at.is_(None)
            )
        )
    )
    .values(attention=True)
)
_NODE_FACTS = sa.select(
    NODES.c.name, NODES.c.state, NODES.c.epoch, NODES.c.agent_url, NODES.c.last_contact, NODES.c.boot_id
).where(_any(NODES.c.name, "names"))
_CLOCK = sa.select(TABLES.ownership.c.last_time).where(TABLES.ownership.c.scope == sa.bindparam("scope"))
_SET_CLOCK = (
    sa.update(TABLES.ownership)
    .where(TABLES.ownership.c.scope == sa.bindparam("of_scope"))
    .values(last_time=sa.bindparam("time"))
)


def _rows(names: Sequence[str], records: Iterable[Attempt] | Iterable[Allocation]) -> list[dict[str, Any]]:
    return [{name: getattr(record, name) for name in names} for record in records]


# --- attempts with their allocations ---------------------------------------------------------------------------------


async def _with_allocations(connection: AsyncConnection, found: sa.CursorResult[Any]) -> list[Attempt]:
    attempts = {attempt.attempt_id: attempt for attempt in (Attempt(*row) for row in found)}
    with_tasks = [attempt.attempt_id for attempt in attempts.values() if attempt.state != AttemptState.PENDING]
    if with_tasks:
        for row in await connection.execute(_TASKS_OF, {"attempt_ids": with_tasks}):
            attempts[row.attempt_id].allocations.append(Allocation(*row))
    return list(attempts.values())


async def attempts_wanting_attention(connection: AsyncConnection, pool_key: str, limit: int) -> list[Attempt]:
    """Without their `spec`, unless it may be needed to start the gang."""
    found = await connection.execute(_WANTING_ATTENTION, {"pool_key": pool_key, "limit": limit})
    return await _with_allocations(connection, found)


async def attempts_by_id(connection: AsyncConnection, attempt_ids: Iterable[str]) -> dict[str, Attempt]:
    found = await connection.execute(_BY_ID, {"attempt_ids": sorted(set(attempt_ids))})
    return {attempt.attempt_id: attempt for attempt in await _with_allocations(connection, found)}


async def insert_attempts(connection: AsyncConnection, attempts: Sequence[Attempt]) -> None:
    await bulk_insert(connection, ATTEMPTS, _rows(_NEW_ATTEMPT, attempts), ignore_existing=True)


async def save_orders(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    """What admission asked for."""
    await bulk_update(connection, ATTEMPTS, _rows(_ORDERS, attempts))


async def save_progress(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    """What the cycle decided."""
    await bulk_update(connection, ATTEMPTS, _rows(_PROGRESS, attempts))


async def save_reasons(connection: AsyncConnection, reasons: dict[str, str]) -> None:
    """Why attempts wait, as they were told."""
    rows = [{"attempt_id": attempt_id, "reason": reason} for attempt_id, reason in reasons.items()]
    await bulk_update(connection, ATTEMPTS, rows)


async def waiting_attempts(connection: AsyncConnection, pool_key: str, limit: int) -> list[Waiting]:
    """The head of the ranked pending set: priority, then age, then id."""
    return [Waiting(*row) for row in await connection.execute(_WAITING, {"pool_key": pool_key, "limit": limit})]


# --- allocations -----------------------------------------------------------------------------------------------------


async def live_allocations_of_nodes(connection: AsyncConnection, nodes: Iterable[str]) -> list[Allocation]:
    return [Allocation(*row) for row in await connection.execute(_LIVE_ON, {"nodes": sorted(set(nodes))})]


async def attend_to_nodes(connection: AsyncConnection, nodes: Sequence[str]) -> None:
    """Every attempt that has something live on these nodes gets the cycle's attention."""
    if nodes:
        await connection.execute(_ATTEND_TO, {"nodes": list(nodes)})


async def insert_allocations(connection: AsyncConnection, allocations: Sequence[Allocation]) -> None:
    await bulk_insert(connection, ALLOCATIONS, _rows(_NEW_ALLOCATION, allocations))


async def save_lives(connection: AsyncConnection, allocations: Iterable[Allocation]) -> None:
    """What the cycle decided, but for commands."""
    await bulk_update(connection, ALLOCATIONS, _rows(_LIFE, allocations))


async def save_commands(connection: AsyncConnection, allocations: Iterable[Allocation]) -> None:
    await bulk_update(connection, ALLOCATIONS, _rows(_COMMAND, allocations))


# --- the ledger of devices -------------------------------------------------------------------------------------------

_BOOK = sa.text(
    "UPDATE placement.devices d SET allocation_id = u.allocation_id "
    "FROM unnest(CAST(:uuids AS text[]), CAST(:allocation_ids AS text[])) AS u(uuid, allocation_id) "
    "WHERE d.uuid = u.uuid AND d.allocation_id IS NULL AND d.healthy AND d.present"
)
_FREE = sa.text(
    "UPDATE placement.devices d SET allocation_id = NULL "
    "FROM unnest(CAST(:uuids AS text[]), CAST(:allocation_ids AS text[])) AS u(uuid, allocation_id) "
    "WHERE d.uuid = u.uuid AND d.allocation_id = u.allocation_id"
)


def _pairs(allocations: Iterable[Allocation]) -> dict[str, list[str]]:
    pairs = [(uuid, allocation.allocation_id) for allocation in allocations for uuid in allocation.device_uuids]
    return {"uuids": [uuid for uuid, _ in pairs], "allocation_ids": [holder for _, holder in pairs]}


async def book_devices(connection: AsyncConnection, allocations: Sequence[Allocation]) -> None:
    """Compare-and-reserve: all of them were free until this statement, or Conflict."""
    pairs = _pairs(allocations)
    done = await connection.execute(_BOOK, pairs)
    if done.rowcount != len(pairs["uuids"]):
        raise Conflict(f"only {done.rowcount} of {len(pairs['uuids'])} devices were still free")


async def free_devices(connection: AsyncConnection, allocations: Sequence[Allocation]) -> None:
    """Each was held by its allocation until this statement, or Conflict: a device is never freed for somebody else."""
    if not allocations:
        return
    pairs = _pairs(allocations)
    done = await connection.execute(_FREE, pairs)
    if done.rowcount != len(pairs["uuids"]):
        raise Conflict(f"only {done.rowcount} of {len(pairs['uuids'])} devices were held by their allocations")


# --- nodes and the ledger's clock ------------------------------------------------------------------------------------


async def node_facts(connection: AsyncConnection, names: Iterable[str]) -> dict[str, NodeFacts]:
    found = await connection.execute(_NODE_FACTS, {"names": sorted(set(names))})
    return {name: NodeFacts(*facts) for name, *facts in found}


async def ledger_clock(connection: AsyncConnection, scope: str, now: datetime) -> datetime:
    """Where the scope's ledger clock stands, or `now` if that is later."""
    last = await connection.scalar(_CLOCK, {"scope": scope})
    return now if last is None else max(now, last)


async def set_ledger_clock(connection: AsyncConnection, scope: str, time: datetime) -> None:
    """Where the ledger clock of a cycle ended. The cycle holds the scope's row since it was fenced."""
    done = await connection.execute(_SET_CLOCK, {"of_scope": scope, "time": time})
    if done.rowcount != 1:
        raise Conflict(f"{scope} has no owner, so it has no ledger time")


_PRUNE = sa.text(
    "WITH gone AS (DELETE FROM placement.attempts WHERE attempt_id IN ("
    "  SELECT a.attempt_id FROM placement.attempts a WHERE a.ended_at < :before AND NOT EXISTS ("
    "    SELECT 1 FROM placement.allocations l WHERE l.attempt_id = a.attempt_id AND l.released_at IS NULL)"
    "  ORDER BY a.ended_at LIMIT :limit) RETURNING attempt_id), "
    "tasks AS (DELETE FROM placement.allocations WHERE attempt_id IN (SELECT attempt_id FROM gone)) "
    "SELECT count(*) FROM gone"
)


async def prune(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Forget attempts that ended before `before` and hold nothing, at most `limit`; returns how many."""
    return int(await connection.scalar(_PRUNE, {"before": before, "limit": limit}) or 0)
