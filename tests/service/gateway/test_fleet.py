"""What owners answer: joined, bounded to what the caller sees, and named when an owner is away."""

from support.gateway import Gateway, fields_of


async def test_nodes_are_joined_and_jobs_of_others_unnamed(gateway: Gateway) -> None:
    devices = [{"uuid": f"GPU-{n}", "index": n, "model": "H100", "memory_bytes": 1, "healthy": True} for n in range(3)]
    gateway.owners.nodes = [
        {"name": "node-1", "state": "ready", "cpus": 8, "devices": devices},
        {"name": "node-2", "state": "lost", "cpus": 4, "devices": []},
    ]
    gateway.owners.used = [
        {
            "node": "node-1",
            "cpus_used": 4,
            "memory_used_bytes": 2**30,
            "devices": [
                {"uuid": "GPU-0", "allocation_id": "a0", "job_id": "job-0", "project": "default", "dirty": False},
                {"uuid": "GPU-1", "allocation_id": "a1", "job_id": "job-1", "project": "vision", "dirty": True},
                {"uuid": "GPU-2", "allocation_id": None, "job_id": None, "project": None, "dirty": False},
            ],
        }
    ]
    viewer = await gateway.caller("dashboard", "viewer", "default")

    seen = {
        name: (await client.get("/v1/nodes")).json()["items"]
        for name, client in (("admin", gateway.http), ("v", viewer))
    }
    assert [device["job_id"] for device in seen["admin"][0]["devices"]] == ["job-0", "job-1", None]
    assert [device["job_id"] for device in seen["v"][0]["devices"]] == ["job-0", None, None]
    assert [device["allocation_id"] for device in seen["v"][0]["devices"]] == ["a0", "a1", None]
    assert [device["dirty"] for device in seen["v"][0]["devices"]] == [False, True, False]
    assert (seen["v"][0]["cpus_used"], seen["v"][0]["cpus"]) == (4, 8)
    assert (seen["v"][1]["cpus_used"], seen["v"][1]["memory_used_bytes"]) == (0, 0)
    assert "project" not in seen["admin"][0]["devices"][0]


async def test_owners_learn_for_whom_the_gateway_asks(gateway: Gateway) -> None:
    viewer = await gateway.caller("dashboard", "viewer", "vision", "default")
    gateway.owners.calls.clear()
    await viewer.get("/v1/usage?group_by=job&project=default&project=vision&since=2026-03-01T00:00:00%2B01:00")
    await gateway.http.get("/v1/audit")

    assert gateway.owners.calls == [
        (
            "GET",
            "/internal/billing/usage?project=default&project=vision&since=2026-03-01T00%3A00%3A00%2B01%3A00&group_by=job",
            {"name": "dashboard", "role": "viewer", "projects": ["default", "vision"]},
        ),
        ("GET", "/internal/audit/audit", {"name": "admin", "role": "admin", "projects": None}),
    ]


async def test_an_owners_problem_is_passed_on(gateway: Gateway) -> None:
    refused = await gateway.http.get("/v1/usage?since=yesterday")
    assert (refused.status_code, fields_of(refused)) == (422, ["since"])
    unknown = await gateway.http.post("/v1/nodes/node-9/cordon")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "There is no node 'node-9'.")


async def test_an_owner_that_is_away_is_named(gateway: Gateway) -> None:
    await gateway.owners_server.stop()
    for path, owner in (
        ("/v1/nodes", "inventory"),
        ("/v1/queues", "admission"),
        ("/v1/projects", "admission"),
        ("/v1/usage", "billing"),
        ("/v1/audit", "audit"),
    ):
        answer = await gateway.http.get(path)
        assert (answer.status_code, answer.json()["upstream"], bool(answer.headers["retry-after"])) == (
            503,
            owner,
            True,
        )

    await gateway.owners_server.start()
    assert (await gateway.http.get("/v1/queues")).json() == {"items": [{"name": "default", "gpu_quota": 8}]}


async def test_quotas_are_checked_before_admission_is_asked(gateway: Gateway) -> None:
    for body in ({}, {"gpu_quota": -1}, {"gpu_quota": "4"}, {"gpu_quota": 1.5}, {"gpu_quota": 2**40}):
        answer = await gateway.http.put("/v1/queues/fast", json=body)
        assert (answer.status_code, fields_of(answer)) == (422, ["gpu_quota"]), body
    extra = await gateway.http.put("/v1/queues/fast", json={"gpu_quota": 1, "gpus": 2})
    assert fields_of(extra) == ["gpus"]
    assert "fast" not in gateway.owners.queues
