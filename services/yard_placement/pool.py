"""The pool as the engine sees it, read from the tables."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.states import NodeState
from yard_engine.snapshot import Device, Node
from yard_placement.ledger import NodeFacts
from yard_placement.repository import ALLOCATIONS, DEVICES, NODES


@dataclass(frozen=True, slots=True)
class Pool:
    """`facts` of every node, `models` of every device that is there."""

    nodes: tuple[Node, ...]
    facts: dict[str, NodeFacts]
    models: dict[str, str]

    @property
    def free_devices(self) -> int:
        return sum(device.free for node in self.nodes if node.schedulable for device in node.devices)


_USED = (
    sa.select(
        ALLOCATIONS.c.node,
        sa.func.sum(ALLOCATIONS.c.cpus).label("cpus"),
        sa.func.sum(ALLOCATIONS.c.memory_bytes).label("memory_bytes"),
    )
    .where(ALLOCATIONS.c.released_at.is_(None))
    .group_by(ALLOCATIONS.c.node)
    .subquery()
)
_NODES = sa.select(
    NODES,
    sa.func.coalesce(_USED.c.cpus, 0.0).label("used_cpus"),
    sa.cast(sa.func.coalesce(_USED.c.memory_bytes, 0), sa.BigInteger).label("used_memory_bytes"),
).outerjoin(_USED, _USED.c.node == NODES.c.name)
_NODES = _NODES.where(NODES.c.pool_key == sa.bindparam("of_pool")).order_by(NODES.c.name)
_DEVICES = (
    sa.select(DEVICES.c.node, DEVICES.c.uuid, DEVICES.c.model, DEVICES.c.healthy, DEVICES.c.allocation_id)
    .where(DEVICES.c.present, DEVICES.c.node == sa.any_(sa.bindparam("nodes", type_=ARRAY(sa.Text))))
    .order_by(DEVICES.c.node, DEVICES.c.idx)
)


async def read_pool(connection: AsyncConnection, pool_key: str) -> Pool:
    found = (await connection.execute(_NODES, {"of_pool": pool_key})).all()
    devices: dict[str, list[Device]] = {row.name: [] for row in found}
    models: dict[str, str] = {}
    for node, uuid, model, healthy, holder in await connection.execute(_DEVICES, {"nodes": list(devices)}):
        devices[node].append(Device(uuid, model, healthy and holder is None, healthy))
        models[uuid] = model
    facts = {row.name: _facts(row) for row in found}
    return Pool(tuple(_node(row, facts[row.name], tuple(devices[row.name])) for row in found), facts, models)


def _facts(row: Any) -> NodeFacts:
    return NodeFacts(row.state, row.epoch, row.agent_url, row.last_contact, row.boot_id)


def _node(row: Any, facts: NodeFacts, devices: tuple[Device, ...]) -> Node:
    """A node whose agent has not said its epoch yet, or whose epoch is of another boot, takes no work."""
    return Node(
        name=row.name,
        ready=row.state == NodeState.READY and row.epoch is not None and facts.current(row.epoch),
        cordoned=row.cordoned,
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        free_cpus=row.cpus - row.used_cpus,
        free_memory_bytes=row.memory_bytes - row.used_memory_bytes,
        devices=devices,
    )
