"""`yard nodes`, `cordon`, `queues`, `projects`, `tokens`, `me`, `usage`, `audit`."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.gateway_double import GatewayDouble
from support.yard_command import Yard

GIB = 2**30


@pytest.fixture
def node(gateway: GatewayDouble) -> dict[str, Any]:
    devices = [
        {"uuid": f"GPU-{index}", "index": index, "model": "H100", "memory_bytes": 80 * GIB, "healthy": index != 2,
         "detail": "fell off the bus" if index == 2 else None, "allocation_id": "al-1" if index == 0 else None,
         "job_id": "job-1" if index == 0 else None, "dirty": index == 1}
        for index in range(4)
    ]  # fmt: skip
    node = {
        "name": "node-1", "cluster": "local", "pool": "default", "state": "ready", "cordoned": False, "generation": 3,
        "boot_id": "b-1", "cpus": 64, "memory_bytes": 512 * GIB, "cpus_used": 8, "memory_used_bytes": 64 * GIB,
        "labels": {"rack": "r1"}, "simulated": True, "last_contact": datetime.now(UTC).isoformat(), "devices": devices,
    }  # fmt: skip
    gateway.change(lambda state: state.nodes.append(node))
    return node


def test_nodes(yard: Yard, node: dict[str, Any]) -> None:
    output = yard("nodes").stdout.decode()
    for part in ("node-1", "ready", "1/4", "4×H100", "8/64", "64 GiB/512 GiB", "ago"):
        assert part in output, part
    assert "rack=r1" in yard("nodes", "-o", "wide").stdout.decode()
    assert json.loads(yard("nodes", "-o", "json").stdout) == {"items": [node]}
    assert yard("nodes", "-o", "name").stdout == b"node-1\n"


def test_describe_a_node(yard: Yard, node: dict[str, Any]) -> None:
    rows = [line.split() for line in yard("nodes", "describe", "node-1").stdout.decode().splitlines()]
    devices = {row[0]: row for row in rows if row and row[0].isdigit()}
    assert [devices[str(index)][4] for index in range(4)] == ["allocated", "dirty", "unhealthy", "free"]
    assert json.loads(yard("nodes", "describe", "node-1", "-o", "json").stdout) == node
    unknown = yard("nodes", "describe", "node-9")
    assert unknown.returncode == 4
    assert "node-1" in unknown.stderr.decode()


def test_cordon_and_back(yard: Yard, gateway: GatewayDouble, node: dict[str, Any]) -> None:
    assert yard("cordon", "node-1").returncode == 0
    assert node["cordoned"]
    assert "ready, cordoned" in yard("nodes").stdout.decode()
    assert json.loads(yard("uncordon", "node-1", "-o", "json").stdout)["cordoned"] is False
    assert yard("cordon", "node-9").returncode == 4


def test_queues(yard: Yard, gateway: GatewayDouble) -> None:
    assert yard("queues", "set", "training", "--gpu-quota", "64").returncode == 0
    assert gateway.state.queues == {"default": 8, "training": 64}
    rows = [line.split() for line in yard("queues").stdout.decode().splitlines()]
    assert ["training", "64", "2", "1", "2"] in rows
    assert yard("queues", "-o", "name").stdout.decode().split() == ["default", "training"]
    assert len(json.loads(yard("queues", "-o", "json").stdout)["items"]) == 2
    assert yard("queues", "set", "training", "--gpu-quota", "-1").returncode == 2


def test_projects(yard: Yard, gateway: GatewayDouble) -> None:
    assert json.loads(yard("projects", "create", "vision", "-o", "json").stdout) == {"name": "vision"}
    assert yard("projects", "-o", "name").stdout.decode().split() == ["default", "vision"]
    assert "vision" in yard("projects").stdout.decode()


def test_a_token_is_the_only_word_on_stdout(yard: Yard, gateway: GatewayDouble) -> None:
    created = yard("tokens", "create", "ci", "--role", "submitter", "--project", "a", "--project", "b")
    assert created.stdout == b"yard_secret\n"
    assert gateway.state.tokens == [{"id": "tok-0", "name": "ci", "role": "submitter", "projects": ["a", "b"]}]
    listed = yard("tokens", "list").stdout.decode()
    assert "tok-0" in listed
    assert "a,b" in listed
    assert "yard_secret" not in listed
    assert yard("tokens", "revoke", "nobody").returncode == 4
    assert yard("tokens", "revoke", "ci").returncode == 0
    assert gateway.state.tokens == []
    assert yard("tokens", "create", "x", "--role", "king").returncode == 2


def test_me(yard: Yard) -> None:
    assert yard("me").stdout.decode() == "alice: submitter, projects: default\n"
    assert json.loads(yard("me", "-o", "json").stdout) == {
        "name": "alice",
        "role": "submitter",
        "projects": ["default"],
    }


def test_usage_is_exact(yard: Yard, gateway: GatewayDouble) -> None:
    line = {"queue": "training", "gpu_seconds": "7200.000001", "open_gpu_seconds": "12.5", "jobs": 3}
    gateway.state.usage = {"items": [line], "total_gpu_seconds": "7200.000001", "as_of": "2026-01-01T00:00:00Z"}
    output = yard("usage", "--by", "queue", "--since", "2026-01-01").stdout.decode()
    assert ["training", "2.000", "7200.000001", "12.5", "3"] in [row.split() for row in output.splitlines()]
    query = gateway.state.received[-1].query
    assert (query["group_by"], query["since"]) == ("queue", "2026-01-01T00:00:00Z")
    assert json.loads(yard("usage", "-o", "json").stdout) == gateway.state.usage
    yard("usage", "--since", "24h")
    since = datetime.fromisoformat(gateway.state.received[-1].query["since"])
    assert abs(datetime.now(UTC) - timedelta(hours=24) - since) < timedelta(minutes=1)
    assert yard("usage", "--since", "yesterday").returncode == 2


def test_audit_fails_on_findings(yard: Yard, gateway: GatewayDouble) -> None:
    checks = [{"id": "INV-1", "title": "No device is booked twice", "ok": True}]
    gateway.state.audit = {"checked_at": "2026-01-01T00:00:00Z", "findings": [], "checks": checks}
    clean = yard("audit")
    assert (clean.returncode, b"INV-1" in clean.stdout) == (0, True)
    finding = {"invariant": "INV-1", "message": "GPU-0 is booked twice", "rows": [{"device": "GPU-0", "sum": 2}]}
    gateway.state.audit["findings"] = [finding]
    checks[0]["ok"] = False
    found = yard("audit")
    assert found.returncode == 1
    assert "FOUND" in found.stdout.decode()
    assert '{"device":"GPU-0","sum":2}' in found.stdout.decode()
    assert "GPU-0 is booked twice" in found.stderr.decode()
    as_json = yard("audit", "-o", "json")
    assert (as_json.returncode, json.loads(as_json.stdout)) == (1, gateway.state.audit)
