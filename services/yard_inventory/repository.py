"""Reading and writing clusters, nodes and devices in bulk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.states import NodeState
from yard_events.types import DeviceFacts
from yard_inventory.fleet import Node
from yard_inventory.liveness import Contact, Watch
from yard_inventory.tables import TABLES, ClusterRow, DeviceRow, NodeRow
from yard_store.bulk import any_of, bulk_insert, bulk_update

CLUSTERS: sa.Table = ClusterRow.__table__  # type: ignore[attr-defined]
NODES: sa.Table = NodeRow.__table__  # type: ignore[attr-defined]
DEVICES: sa.Table = DeviceRow.__table__  # type: ignore[attr-defined]

_NODE_COLUMNS = tuple(field.name for field in fields(Node) if field.name != "devices")
_CLUSTER_COLUMNS = ("watching_term", "watching_since", "frozen_since", "grace_until")


async def nodes(connection: AsyncConnection, names: Iterable[str] | None = None) -> dict[str, Node]:
    """Nodes by name, in the order of their names, without their devices; None: all."""
    statement = sa.select(*(NODES.c[name] for name in _NODE_COLUMNS)).order_by(NODES.c.name)
    if names is not None:
        statement = statement.where(any_of(NODES.c.name, sorted(set(names))))
    return {row["name"]: _node(row) for row in (await connection.execute(statement)).mappings()}


def _node(row: Mapping[Any, Any]) -> Node:
    values: dict[str, Any] = {name: row[name] for name in _NODE_COLUMNS}
    values["state"] = NodeState(row["state"])
    return Node(**values)


async def with_devices(connection: AsyncConnection, bare: dict[str, Node]) -> dict[str, Node]:
    """The same nodes with their devices."""
    statement = sa.select(DEVICES).where(any_of(DEVICES.c.node, sorted(bare))).order_by(DEVICES.c.node, DEVICES.c.idx)
    devices: dict[str, list[DeviceFacts]] = {name: [] for name in bare}
    for row in await connection.execute(statement):
        devices[row.node].append(
            DeviceFacts(
                uuid=row.uuid,
                index=row.idx,
                model=row.model,
                memory_bytes=row.memory_bytes,
                healthy=row.healthy,
                detail=row.detail,
            )
        )
    return {name: replace(node, devices=tuple(devices[name])) for name, node in bare.items()}


async def holders(connection: AsyncConnection, uuids: Iterable[str]) -> set[str]:
    """The nodes that these devices were last seen in."""
    statement = sa.select(DEVICES.c.node).distinct().where(any_of(DEVICES.c.uuid, sorted(set(uuids))))
    return {row.node for row in await connection.execute(statement)}


async def save_contacts(connection: AsyncConnection, offsets: dict[str, int], now: datetime) -> None:
    """Heartbeats: node → offset of its report. One statement, and no index to maintain."""
    rows = [{"name": name, "last_contact": now, "folded_offset": offset} for name, offset in sorted(offsets.items())]
    await bulk_update(connection, NODES, rows)


async def save_nodes(connection: AsyncConnection, changed: Sequence[Node]) -> None:
    """Insert or overwrite nodes; their devices are `replace_devices`' business."""
    rows = [{name: getattr(node, name) for name in _NODE_COLUMNS} for node in changed]
    await bulk_insert(connection, NODES, rows, update=[name for name in _NODE_COLUMNS if name != "name"])


async def replace_devices(connection: AsyncConnection, changed: Sequence[Node]) -> None:
    """All devices of these nodes. A device that moved needs both nodes in one call: its uuid exists once."""
    if not changed:
        return
    await connection.execute(sa.delete(DEVICES).where(any_of(DEVICES.c.node, [node.name for node in changed])))
    rows: list[dict[str, Any]] = [
        {
            "uuid": device.uuid,
            "node": node.name,
            "idx": device.index,
            "model": device.model,
            "memory_bytes": device.memory_bytes,
            "healthy": device.healthy,
            "detail": device.detail,
        }
        for node in changed
        for device in node.devices
    ]
    await bulk_insert(connection, DEVICES, rows)


async def save_states(connection: AsyncConnection, states: dict[str, NodeState]) -> None:
    await bulk_update(connection, NODES, [{"name": name, "state": state} for name, state in sorted(states.items())])


async def save_cordon(connection: AsyncConnection, name: str, cordoned: bool) -> None:
    await connection.execute(sa.update(NODES).where(NODES.c.name == name).values(cordoned=cordoned))


async def contacts(connection: AsyncConnection, cluster: str) -> list[Contact]:
    """The cluster's nodes that are not lost, and when each was heard."""
    statement = sa.select(NODES.c.name, NODES.c.state, NODES.c.last_contact)
    statement = statement.where(NODES.c.cluster == cluster, NODES.c.state != NodeState.LOST).order_by(NODES.c.name)
    return [Contact(row.name, NodeState(row.state), row.last_contact) for row in await connection.execute(statement)]


async def watch(connection: AsyncConnection, cluster: str) -> tuple[int, int | None, Watch | None]:
    """(the scope's term now, the term under which the stored watch began, the stored watch)."""
    owned = TABLES.ownership
    term = await connection.scalar(sa.select(owned.c.term).where(owned.c.scope == cluster))
    row = (await connection.execute(sa.select(CLUSTERS).where(CLUSTERS.c.name == cluster))).one_or_none()
    if row is None:
        return term or 0, None, None
    return term or 0, row.watching_term, Watch(row.watching_since, row.frozen_since, row.grace_until)


async def save_watch(connection: AsyncConnection, cluster: str, term: int, current: Watch) -> None:
    row = {
        "name": cluster,
        "watching_term": term,
        "watching_since": current.since,
        "frozen_since": current.frozen_since,
        "grace_until": current.grace_until,
    }
    await bulk_insert(connection, CLUSTERS, [row], update=_CLUSTER_COLUMNS)
