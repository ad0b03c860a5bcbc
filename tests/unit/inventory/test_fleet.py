"""Registrations: what is refused, and what counts as other hardware."""

from datetime import UTC, datetime, timedelta

import pytest

from yard_domain.errors import Permanent
from yard_domain.states import NodeState
from yard_events.types import DeviceFacts, NodeRegistered
from yard_inventory.fleet import check_registration, heard, register

NOW = datetime(2026, 3, 1, tzinfo=UTC)
GIB = 2**30


def device(number: int = 0, **changes) -> DeviceFacts:
    facts = {"uuid": f"GPU-{number}", "index": number, "model": "H100", "memory_bytes": 80 * GIB}
    return DeviceFacts(**(facts | changes))


def registered(**changes) -> NodeRegistered:
    facts = {
        "node": "n1",
        "observed_at": NOW,
        "cluster": "local",
        "pool": "default",
        "boot_id": "b1",
        "journal_id": "j1",
        "epoch": "b1/j1",
        "agent_url": "http://127.0.0.1:9000",
        "advertise_addr": "127.0.0.1",
        "cpus": 8.0,
        "memory_bytes": 64 * GIB,
        "devices": [device(0), device(1)],
    }
    return NodeRegistered(**(facts | changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"node": "No/Name"}, "node"),
        ({"node": "../etc"}, "node"),
        ({"cluster": "elsewhere"}, "cluster"),
        ({"pool": ""}, "pool"),
        ({"boot_id": ""}, "boot_id"),
        ({"boot_id": "a\0b"}, "boot_id"),
        ({"agent_url": "http://x\n"}, "agent_url"),
        ({"cpus": 0.0}, "cpus"),
        ({"cpus": -1.0}, "cpus"),
        ({"cpus": 4096.5}, "cpus"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 2**63}, "memory_bytes"),
        ({"labels": {f"l{n}": "x" for n in range(65)}}, "labels"),
        ({"labels": {"zone": "a\0"}}, "labels"),
        ({"devices": [device(n) for n in range(65)]}, "devices"),
        ({"devices": [device(0), device(1, uuid="GPU-0")]}, "devices"),
        ({"devices": [device(0), device(1, index=0)]}, "devices"),
        ({"devices": [device(uuid="")]}, "devices.0.uuid"),
        ({"devices": [device(model="")]}, "devices.0.model"),
        ({"devices": [device(memory_bytes=0)]}, "devices.0.memory_bytes"),
        ({"devices": [device(index=-1)]}, "devices.0.index"),
        ({"devices": [device(0), device(1, detail="\0")]}, "devices.1.detail"),
    ],
)
def test_a_registration_that_cannot_be_true_is_refused_by_field(changes, field):
    with pytest.raises(Permanent, match=rf"(: |; ){field}: "):
        check_registration(registered(**changes), "local")


@pytest.mark.parametrize(
    "changes", [{}, {"devices": []}, {"devices": [device(n) for n in range(64)]}, {"labels": {"zone": ""}}]
)
def test_unusual_but_possible_nodes_are_accepted(changes):
    check_registration(registered(**changes), "local")


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        ({}, 1),
        ({"boot_id": "b2", "agent_url": "http://127.0.0.1:9001", "labels": {"zone": "a"}}, 1),
        ({"devices": [device(0, healthy=False, detail="XID 79"), device(1)]}, 1),
        ({"devices": [device(0, index=1), device(1, index=0)]}, 1),
        ({"devices": [device(0)]}, 2),
        ({"devices": [device(0), device(2, index=1)]}, 2),
        ({"devices": [device(0), device(1, model="A100")]}, 2),
        ({"devices": [device(0), device(1, memory_bytes=GIB)]}, 2),
        ({"cpus": 16.0}, 2),
        ({"memory_bytes": GIB}, 2),
    ],
)
def test_only_other_hardware_is_another_generation(changes, generation):
    known = register(None, registered(), NOW, 0)
    assert register(known, registered(**changes), NOW, 1).generation == generation


def test_a_heartbeat_of_a_ready_node_changes_nothing_for_others():
    node = register(None, registered(), NOW, 0)
    later = heard(node, NOW + timedelta(seconds=5), 7)
    assert later != node
    assert later.same_for_others(node)


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.LOST])
def test_any_report_makes_a_silent_node_ready(state):
    node = register(None, registered(), NOW, 0)
    silent = type(node)(**{name: getattr(node, name) for name in node.__slots__} | {"state": state})
    assert heard(silent, NOW, 1).state is NodeState.READY
    assert not heard(silent, NOW, 1).same_for_others(silent)
