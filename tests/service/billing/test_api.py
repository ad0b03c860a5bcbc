"""GET /usage."""

import json

import httpx
import pytest

from support.billing import Billing, granted, job_id, released


@pytest.fixture
async def used(billing: Billing) -> Billing:
    """a: 20 device-s of p1 (closed); b: 1.000001 device-s of p2, running."""
    await billing.send(
        granted("a", 0, models=[("H100", "H100")], project="p1"),
        granted("b", 10, project="p2", queue="q2"),
        released("a", 10, project="p1"),
    )
    billing.clock.advance(11.000001)
    return billing


async def test_usage_by_project_is_the_default(used: Billing, http: httpx.AsyncClient):
    answer = await http.get("/usage")
    assert answer.status_code == 200
    assert answer.json() == {
        "items": [
            {"project": "p1", "gpu_seconds": "20.000000", "open_gpu_seconds": "0.000000", "jobs": 1},
            {"project": "p2", "gpu_seconds": "1.000001", "open_gpu_seconds": "1.000001", "jobs": 1},
        ],
        "total_gpu_seconds": "21.000001",
        "total_open_gpu_seconds": "1.000001",
        "total_jobs": 2,
        "as_of": "2026-03-01T12:00:11.000001Z",
    }


async def test_nothing_used(billing: Billing, http: httpx.AsyncClient):
    answer = (await http.get("/usage?group_by=model")).json()
    assert (answer["items"], answer["total_gpu_seconds"], answer["total_jobs"]) == ([], "0.000000", 0)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("group_by=queue", {"default": "20.000000", "q2": "1.000001"}),
        ("group_by=job", {job_id("a"): "20.000000", job_id("b"): "1.000001"}),
        ("group_by=model", {"H100": "21.000001"}),
        ("project=p1", {"p1": "20.000000"}),
        ("project=p1&project=p2", {"p1": "20.000000", "p2": "1.000001"}),
        ("project=p3", {}),
        ("queue=q2", {"p2": "1.000001"}),
        (f"job={job_id('a')}", {"p1": "20.000000"}),
        ("since=2026-03-01T12:00:09Z&until=2026-03-01T12:00:10.5Z", {"p1": "2.000000", "p2": "0.500000"}),
        ("since=2026-03-01T13:00:09%2B01:00", {"p1": "2.000000", "p2": "1.000001"}),
    ],
)
async def test_filters_and_groups(used: Billing, http: httpx.AsyncClient, query: str, names: dict[str, str]):
    answer = await http.get(f"/usage?{query}")
    assert answer.status_code == 200, answer.text
    by = query.removeprefix("group_by=") if query.startswith("group_by=") else "project"
    assert {item[by]: item["gpu_seconds"] for item in answer.json()["items"]} == names


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("group_by=colour", "group_by"),
        ("group_by=project_id;drop", "group_by"),
        ("project=No%20Name", "project.0"),
        ("project=ok&project=%00", "project.1"),
        ("queue=", "queue.0"),
        ("job=17", "job.0"),
        ("since=yesterday", "since"),
        ("since=5", "since"),
        ("since=2026-03-01", "since"),
        ("since=2026-03-01T00:00:00", "since"),
        ("until=2026-02-30T00:00:00Z", "until"),
        ("until=0001-01-01T00:00:00%2B14:00", "until"),
        ("since=2026-03-01T00:00:00Z&until=2026-03-01T00:00:00Z", "until"),
        ("projct=p1", "projct"),
    ],
)
async def test_a_bad_query_is_refused_by_field(used: Billing, http: httpx.AsyncClient, query: str, field: str):
    answer = await http.get(f"/usage?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert answer.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("projects", "query", "seen"),
    [
        (None, "", ["p1", "p2"]),
        (["p2"], "", ["p2"]),
        (["p2"], "?project=p1", []),
        (["p2"], "?project=p1&project=p2", ["p2"]),
        ([], "", []),
    ],
)
async def test_a_principal_bound_to_projects_sees_those_only(
    used: Billing, http: httpx.AsyncClient, projects, query, seen
):
    principal = json.dumps({"name": "ann", "role": "viewer", "projects": projects})
    answer = (await http.get(f"/usage{query}", headers={"X-Yard-Principal": principal})).json()
    assert [item["project"] for item in answer["items"]] == seen
    assert answer["total_jobs"] == len(seen)


@pytest.mark.parametrize("principal", ["", "ann", "[]", '{"name": "ann"}', '{"projects": "p1"}', '{"projects": [1]}'])
async def test_a_malformed_principal_sees_nothing(used: Billing, http: httpx.AsyncClient, principal: str):
    assert (await http.get("/usage", headers={"X-Yard-Principal": principal})).status_code == 422
