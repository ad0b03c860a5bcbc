"""Queues and projects over admission's internal HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.admission import Desk
from support.log import events_of
from yard_admission.outbox import SCOPE
from yard_events import registry
from yard_events.types import QueueState
from yard_runtime.http import install_problem_handlers


@pytest.fixture
async def http(desk: Desk) -> AsyncIterator[httpx.AsyncClient]:
    api = desk.service.api()
    assert api is not None
    install_problem_handlers(api)
    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://admission") as client:
        yield client


async def states(desk: Desk) -> list[tuple[str, int]]:
    found = [e for e in await events_of(desk.runtime, registry.QUEUES_STATE) if isinstance(e, QueueState)]
    return [(state.queue, state.gpu_quota) for state in found]


async def test_an_installation_begins_with_a_default_queue_and_project(desk: Desk, http: httpx.AsyncClient) -> None:
    queue = {"name": "default", "gpu_quota": 4, "used_gpus": 0, "queued_jobs": 0, "running_jobs": 0}
    assert (await http.get("/queues")).json() == {"items": [queue]}
    assert (await http.get("/projects")).json() == {"items": [{"name": "default"}]}
    assert await states(desk) == [("default", 4)]


async def test_a_second_start_keeps_what_was_changed(desk: Desk, http: httpx.AsyncClient) -> None:
    await http.put("/queues/default", json={"gpu_quota": 2})
    again = await Desk.open(desk.runtime)
    assert (await again.rows("SELECT gpu_quota FROM admission.queues")) == [{"gpu_quota": 2}]
    assert await states(desk) == [("default", 4), ("default", 2)]


async def test_a_new_queue_takes_jobs(desk: Desk, http: httpx.AsyncClient) -> None:
    made = await http.put("/queues/research", json={"gpu_quota": 2})
    assert (made.status_code, made.json()["gpu_quota"]) == (200, 2)
    await desk.submit("a", queue="research", gpus=2)
    await desk.submit("b", queue="research")
    await desk.start("a")
    queue = {"name": "research", "gpu_quota": 2, "used_gpus": 2, "queued_jobs": 1, "running_jobs": 1}
    assert (await http.get("/queues")).json()["items"][1] == queue


async def test_a_raised_quota_is_used_at_once(desk: Desk, http: httpx.AsyncClient) -> None:
    await desk.submit("big", gpus=8)
    raised = await http.put("/queues/default", json={"gpu_quota": 8})
    assert raised.json() == {"name": "default", "gpu_quota": 8, "used_gpus": 0, "queued_jobs": 1, "running_jobs": 0}
    await desk.settle()
    assert await desk.states("big") == ["admitted"]


async def test_the_same_quota_again_says_nothing(desk: Desk, http: httpx.AsyncClient) -> None:
    before = await desk.everything()
    assert (await http.put("/queues/default", json={"gpu_quota": 4})).status_code == 200
    assert await desk.everything() == before


BAD: list[Any] = [
    ("/queues/Bad_Name!", {"gpu_quota": 1}, "name"),
    ("/queues/" + "x" * 64, {"gpu_quota": 1}, "name"),
    ("/queues/a..b", {"gpu_quota": 1}, "name"),
    ("/queues/q", {"gpu_quota": -1}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": 1_000_001}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": 10**30}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": 1.5}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": "1"}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": True}, "gpu_quota"),
    ("/queues/q", {}, "gpu_quota"),
    ("/queues/q", {"gpu_quota": 1, "weight": 2}, "weight"),
    ("/projects/-x", {}, "name"),
    ("/projects/p", {"owner": "ann"}, "owner"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD)
async def test_bad_input_names_the_field_and_stores_nothing(
    desk: Desk, http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    before = await desk.everything()
    answer = await http.put(path, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert await desk.everything() == before


@pytest.mark.parametrize("quota", [0, 1_000_000])
async def test_quotas_at_the_edges(http: httpx.AsyncClient, quota: int) -> None:
    answer = await http.put("/queues/q", json={"gpu_quota": quota})
    assert (answer.status_code, answer.json()["gpu_quota"]) == (200, quota)


async def test_a_new_project_takes_jobs_and_making_it_twice_is_fine(desk: Desk, http: httpx.AsyncClient) -> None:
    for _ in range(2):
        answer = await http.put("/projects/vision", json={})
        assert (answer.status_code, answer.json()) == (200, {"name": "vision"})
    await desk.submit("a", project="vision")
    assert await desk.states("a") == ["admitted"]


@pytest.mark.parametrize("path", ["/queues/default", "/projects/p"])
async def test_only_the_owner_of_the_scope_writes(desk: Desk, http: httpx.AsyncClient, path: str) -> None:
    await desk.store.take(SCOPE, "somebody else")
    before = await desk.everything()
    body = {"gpu_quota": 1} if path.startswith("/queues") else {}
    answer = await http.put(path, json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await desk.everything() == before
