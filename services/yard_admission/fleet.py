"""What of the fleet matters to admission: whether a job that no node could hold may fit now.

Heartbeats and the comings and goings of free devices do not: reacting to them would requeue everything for nothing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from yard_domain.states import NodeState
from yard_events.types import InventoryNode


class KnownNode(Protocol):
    hardware: str
    schedulable: bool
    at: datetime


def hardware_of(node: InventoryNode) -> str:
    """A digest of everything that decides what the node could hold when empty."""
    facts = {
        "pool": [node.cluster, node.pool],
        "generation": node.generation,
        "boot_id": node.boot_id,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "devices": sorted([d.uuid, d.model, d.memory_bytes, d.healthy] for d in node.devices),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def fold(nodes: Iterable[InventoryNode], known: Mapping[str, KnownNode]) -> tuple[list[dict[str, Any]], bool]:
    """Rows to store for what is newer than known, and whether something may fit now that did not before.

    States of one node are taken in the order of inventory's time, so that old ones, delivered again, change nothing.
    """
    rows: dict[str, dict[str, Any]] = {}
    better = False
    for node in sorted(nodes, key=lambda node: node.at):
        old = known.get(node.node)
        before = rows.get(node.node) or (
            {"hardware": old.hardware, "schedulable": old.schedulable, "at": old.at} if old is not None else None
        )
        if before is not None and node.at <= before["at"]:
            continue
        row = {
            "name": node.node,
            "hardware": hardware_of(node),
            "schedulable": node.state == NodeState.READY and not node.cordoned,
            "at": node.at,
        }
        better = better or (
            before is None
            or before["hardware"] != row["hardware"]
            or (row["schedulable"] and not before["schedulable"])
        )
        rows[node.node] = row
    return list(rows.values()), better
