"""Reading and writing the ledger in bulk."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.errors import Conflict
from yard_domain.states import NodeState
from yard_engine.snapshot import Device, Node
from yard_placement.ledger import ALLOCATION_FIELDS, ATTEMPT_FIELDS, Allocation, Attempt, NodeFacts
from yard_placement.tables import TABLES, AllocationRow, AttemptRow, DeviceRow, NodeRow
from yard_store.bulk import any_of, bulk_insert, bulk_update

ATTEMPTS: sa.Table = AttemptRow.__table__  # type: ignore[attr-defined]
ALLOCATIONS: sa.Table = AllocationRow.__table__  # type: ignore[attr-defined]
DEVICES: sa.Table = DeviceRow.__table__  # type: ignore[attr-defined]
NODES: sa.Table = NodeRow.__table__  # type: ignore[attr-defined]

_MUTABLE_ATTEMPT = (
    "attempt_id",
    "state",
    "attention",
    "reason",
    "stop_reason",
    "stop_grace_seconds",
    "stop_sent",
    "withdrawn",
    "started_sent",
    "lost_since",
    "ended_at",
)
_IMMUTABLE_ALLOCATION = frozenset(
    {"attempt_id", "job_id", "project_id", "task_rank", "node", "device_uuids", "cpus", "memory_bytes", "granted_at"}
)
_MUTABLE_ALLOCATION = tuple(name for name in ALLOCATION_FIELDS if name not in _IMMUTABLE_ALLOCATION)


def _attempt(row: Any) -> Attempt:
    return Attempt(*(row[name] for name in ATTEMPT_FIELDS))


def _allocation(row: Any) -> Allocation:
    return Allocation(*(row[name] for name in ALLOCATION_FIELDS))


async def _with_allocations(connection: AsyncConnection, found: Sequence[Any]) -> list[Attempt]:
    attempts = {row["attempt_id"]: _attempt(row) for row in found}
    with_tasks = [attempt.attempt_id for attempt in attempts.values() if attempt.state != "pending"]
    if with_tasks:
        statement = sa.select(*(ALLOCATIONS.c[name] for name in ALLOCATION_FIELDS))
        statement = statement.where(any_of(ALLOCATIONS.c.attempt_id, with_tasks)).order_by(ALLOCATIONS.c.task_rank)
        for row in (await connection.execute(statement)).mappings():
            attempts[row["attempt_id"]].allocations.append(_allocation(row))
    return list(attempts.values())


async def attempts_wanting_attention(connection: AsyncConnection, pool_key: str, limit: int) -> list[Attempt]:
    statement = sa.select(*(ATTEMPTS.c[name] for name in ATTEMPT_FIELDS))
    statement = statement.where(ATTEMPTS.c.pool_key == pool_key, ATTEMPTS.c.attention)
    statement = statement.order_by(ATTEMPTS.c.attempt_id).limit(limit)
    return await _with_allocations(connection, (await connection.execute(statement)).mappings().all())


async def attempts_by_id(connection: AsyncConnection, attempt_ids: Iterable[str]) -> dict[str, Attempt]:
    statement = sa.select(*(ATTEMPTS.c[name] for name in ATTEMPT_FIELDS))
    statement = statement.where(any_of(ATTEMPTS.c.attempt_id, sorted(set(attempt_ids))))
    found = (await connection.execute(statement)).mappings().all()
    return {attempt.attempt_id: attempt for attempt in await _with_allocations(connection, found)}


async def pending_attempts(connection: AsyncConnection, pool_key: str, limit: int) -> list[Attempt]:
    """The head of the ranked pending set: priority, then age, then id."""
    statement = (
        sa.select(*(ATTEMPTS.c[name] for name in ATTEMPT_FIELDS))
        .where(ATTEMPTS.c.pool_key == pool_key, ATTEMPTS.c.state == sa.literal_column("'pending'"))
        .where(~ATTEMPTS.c.withdrawn, ATTEMPTS.c.stop_reason.is_(None))
        .order_by(ATTEMPTS.c.priority.desc(), ATTEMPTS.c.submitted_at, ATTEMPTS.c.job_id)
        .limit(limit)
    )
    return [_attempt(row) for row in (await connection.execute(statement)).mappings()]


async def allocations_by_id(connection: AsyncConnection, allocation_ids: Iterable[str]) -> dict[str, Allocation]:
    statement = sa.select(*(ALLOCATIONS.c[name] for name in ALLOCATION_FIELDS))
    statement = statement.where(any_of(ALLOCATIONS.c.allocation_id, sorted(set(allocation_ids))))
    found = (await connection.execute(statement)).mappings()
    return {row["allocation_id"]: _allocation(row) for row in found}


async def live_allocations_of_nodes(connection: AsyncConnection, nodes: Iterable[str]) -> list[Allocation]:
    statement = sa.select(*(ALLOCATIONS.c[name] for name in ALLOCATION_FIELDS))
    statement = statement.where(any_of(ALLOCATIONS.c.node, sorted(set(nodes))), ALLOCATIONS.c.released_at.is_(None))
    found = (await connection.execute(statement.order_by(ALLOCATIONS.c.allocation_id))).mappings()
    return [_allocation(row) for row in found]


async def insert_attempts(connection: AsyncConnection, attempts: Sequence[Attempt]) -> None:
    rows = [{name: getattr(attempt, name) for name in ATTEMPT_FIELDS} for attempt in attempts]
    await bulk_insert(connection, ATTEMPTS, rows, ignore_existing=True)


async def save_attempts(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    rows = [{name: getattr(attempt, name) for name in _MUTABLE_ATTEMPT} for attempt in attempts]
    await bulk_update(connection, ATTEMPTS, rows)


async def insert_allocations(connection: AsyncConnection, allocations: Sequence[Allocation]) -> None:
    rows = [{name: getattr(allocation, name) for name in ALLOCATION_FIELDS} for allocation in allocations]
    await bulk_insert(connection, ALLOCATIONS, rows)


async def save_allocations(connection: AsyncConnection, allocations: Iterable[Allocation]) -> None:
    rows = [{name: getattr(allocation, name) for name in _MUTABLE_ALLOCATION} for allocation in allocations]
    await bulk_update(connection, ALLOCATIONS, rows)


async def want_attention(connection: AsyncConnection, attempt_ids: Iterable[str]) -> None:
    wanted = sorted(set(attempt_ids))
    if wanted:
        await connection.execute(
            sa.update(ATTEMPTS).where(any_of(ATTEMPTS.c.attempt_id, wanted)).values(attention=True)
        )


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
    pairs = _pairs(allocations)
    done = await connection.execute(_FREE, pairs)
    if done.rowcount != len(pairs["uuids"]):
        raise Conflict(f"only {done.rowcount} of {len(pairs['uuids'])} devices were held by their allocations")


async def node_facts(connection: AsyncConnection, names: Iterable[str] | None = None) -> dict[str, NodeFacts]:
    columns = (NODES.c.name, NODES.c.state, NODES.c.epoch, NODES.c.agent_url, NODES.c.last_contact)
    statement = sa.select(*columns)
    if names is not None:
        statement = statement.where(any_of(NODES.c.name, sorted(set(names))))
    found = await connection.execute(statement)
    return {row.name: NodeFacts(row.state, row.epoch, row.agent_url, row.last_contact) for row in found}


async def snapshot(connection: AsyncConnection, pool_key: str) -> tuple[Node, ...]:
    """The pool as the engine sees it. A node whose agent has not said its epoch yet takes no work."""
    nodes = (await connection.execute(sa.select(NODES).where(NODES.c.pool_key == pool_key))).all()
    devices = await connection.execute(
        sa.select(DEVICES).where(any_of(DEVICES.c.node, [node.name for node in nodes]), DEVICES.c.present)
    )
    by_node: dict[str, list[Any]] = {node.name: [] for node in nodes}
    for device in devices:
        by_node[device.node].append(device)
    used = await _used(connection)
    return tuple(
        Node(
            name=node.name,
            ready=node.state == NodeState.READY and node.epoch is not None,
            cordoned=node.cordoned,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            free_cpus=node.cpus - used.get(node.name, (0.0, 0))[0],
            free_memory_bytes=node.memory_bytes - used.get(node.name, (0.0, 0))[1],
            devices=tuple(
                Device(device.uuid, device.model, device.healthy and device.allocation_id is None)
                for device in sorted(by_node[node.name], key=lambda device: device.idx)
            ),
        )
        for node in sorted(nodes, key=lambda node: node.name)
    )


async def _used(connection: AsyncConnection) -> dict[str, tuple[float, int]]:
    """CPU cores and memory booked per node."""
    statement = (
        sa.select(ALLOCATIONS.c.node, sa.func.sum(ALLOCATIONS.c.cpus), sa.func.sum(ALLOCATIONS.c.memory_bytes))
        .where(ALLOCATIONS.c.released_at.is_(None))
        .group_by(ALLOCATIONS.c.node)
    )
    return {node: (float(cpus), int(memory)) for node, cpus, memory in await connection.execute(statement)}


async def set_ledger_time(connection: AsyncConnection, scope: str, time: datetime) -> None:
    """Where the ledger clock of a cycle ended."""
    t = TABLES.ownership
    await connection.execute(sa.update(t).where(t.c.scope == scope).values(last_time=time))


async def prune(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Forget attempts that ended before `before` and hold nothing; returns how many."""
    done = await connection.execute(
        sa.text(
            "WITH gone AS (DELETE FROM placement.attempts a WHERE a.attempt_id IN ("
            "  SELECT attempt_id FROM placement.attempts WHERE ended_at < :before AND NOT EXISTS ("
            "    SELECT 1 FROM placement.allocations l WHERE l.attempt_id = attempts.attempt_id"
            "      AND l.released_at IS NULL) ORDER BY ended_at LIMIT :limit) RETURNING a.attempt_id) "
            "DELETE FROM placement.allocations WHERE attempt_id IN (SELECT attempt_id FROM gone)"
        ),
        {"before": before, "limit": limit},
    )
    return done.rowcount
