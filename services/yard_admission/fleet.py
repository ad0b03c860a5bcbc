"""What of the fleet matters to admission: whether a job that no node could hold may fit now.

Heartbeats and the comings and goings of free devices do not: reacting to them would requeue everything for nothing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from yard_domain.states import NodeState
from yard_events.types import InventoryNode

_COLUMNS = ("hardware", "schedulable", "log_offset")


class KnownNode(Protocol):
    hardware: str
    schedulable: bool
    log_offset: int


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


def fold(
    states: Iterable[tuple[int, InventoryNode]], known: Mapping[str, KnownNode]
) -> tuple[list[dict[str, Any]], bool]:
    """Rows to store for what is newer than known, and whether something may fit now that did not before.

    `states` come with their offsets in the topic, rising; an old one, delivered again, is below the offset stored.
    """
    newest = {name: (node.hardware, node.schedulable, node.log_offset) for name, node in known.items()}
    changed: set[str] = set()
    better = False
    for log_offset, node in states:
        hardware, schedulable = hardware_of(node), node.state == NodeState.READY and not node.cordoned
        before = newest.get(node.node)
        if before is not None and log_offset <= before[2]:
            continue
        better = better or before is None or hardware != before[0] or (schedulable and not before[1])
        newest[node.node] = (hardware, schedulable, log_offset)
        changed.add(node.node)
    return [dict(zip(("name", *_COLUMNS), (name, *newest[name]), strict=True)) for name in sorted(changed)], better
