"""Inventory's internal HTTP."""

from collections.abc import AsyncIterator

import httpx
import pytest

from support.inventory import GIB, Inventory
from yard_runtime.http import install_problem_handlers


@pytest.fixture
async def http(inventory: Inventory) -> AsyncIterator[httpx.AsyncClient]:
    app = inventory.service.api()
    assert app is not None
    install_problem_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inventory") as client:
        yield client


async def test_nodes_are_shown_with_their_devices(inventory: Inventory, http: httpx.AsyncClient):
    await inventory.register("n2", "n1")
    answer = await http.get("/nodes")
    assert answer.status_code == 200
    assert [node["name"] for node in answer.json()["items"]] == ["n1", "n2"]
    node = (await http.get("/nodes/n1")).json()
    assert node == answer.json()["items"][0]
    assert node == {
        "name": "n1",
        "cluster": "local",
        "pool": "default",
        "state": "ready",
        "cordoned": False,
        "generation": 1,
        "boot_id": "b1",
        "cpus": 8.0,
        "memory_bytes": 64 * GIB,
        "labels": {"zone": "a"},
        "simulated": False,
        "last_contact": "2026-03-01T12:00:00Z",
        "devices": [
            {
                "uuid": f"GPU-n1-{index}",
                "index": index,
                "model": "H100",
                "memory_bytes": 80 * GIB,
                "healthy": True,
                "detail": None,
            }
            for index in (0, 1)
        ],
    }


async def test_an_empty_fleet_is_an_empty_list(inventory: Inventory, http: httpx.AsyncClient):
    assert (await http.get("/nodes")).json() == {"items": []}


async def test_cordon_and_uncordon_are_told_once_and_survive_registrations(
    inventory: Inventory, http: httpx.AsyncClient
):
    await inventory.register("n1")
    await inventory.emitted()
    for _ in range(2):
        answer = await http.post("/nodes/n1/cordon")
        assert (answer.status_code, answer.json()["cordoned"]) == (200, True)
    (event,) = await inventory.emitted()
    assert (event.cordoned, event.state, len(event.devices)) == (True, "ready", 2)

    await inventory.feed.send(inventory.registered("n1", boot_id="b2", cpus=4.0))
    (event,) = await inventory.emitted()
    assert event.cordoned is True
    assert (await http.post("/nodes/n1/uncordon")).json()["cordoned"] is False
    assert [event.cordoned for event in await inventory.emitted()] == [False]


@pytest.mark.parametrize("name", ["ghost", "No%20Name", "%00", "a..b"])
async def test_an_unknown_node_is_a_404(inventory: Inventory, http: httpx.AsyncClient, name: str):
    for answer in (await http.get(f"/nodes/{name}"), await http.post(f"/nodes/{name}/cordon")):
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


async def test_only_the_owner_of_the_cluster_writes(inventory: Inventory, http: httpx.AsyncClient):
    await inventory.register("n1")
    await inventory.emitted()
    await inventory.store.take("local", "another")
    answer = await http.post("/nodes/n1/cordon")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await inventory.emitted() == []
    assert (await inventory.rows("nodes"))[0]["cordoned"] is False
