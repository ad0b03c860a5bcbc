"""Who may do what, and what others' projects look like from outside."""

from typing import Any

import httpx

from support.gateway import ADMIN_TOKEN, Gateway, document, event_stream, fact, fields_of, running_gateway
from yard_runtime.service import Runtime

NOBODY = "job-00000000000000000000000000"


async def callers(gateway: Gateway) -> dict[str, httpx.AsyncClient]:
    return {
        "admin": gateway.http,
        "operator": await gateway.caller("op", "operator"),
        "submitter": await gateway.caller("ci", "submitter", "default"),
        "viewer": await gateway.caller("dashboard", "viewer", "default"),
        "outsider": await gateway.caller("other-ci", "submitter", "vision"),
        "nobody": gateway.client(None),
    }


async def test_the_table_of_rights(gateway: Gateway) -> None:
    """Each row: request, then the status for admin, operator, submitter, viewer, outsider, nobody."""
    job = await gateway.submit()
    gateway.owners.nodes = [{"name": "node-1", "devices": []}]
    who = await callers(gateway)
    post: dict[str, Any] = {"json": document()}
    token: dict[str, Any] = {"json": {"name": "x", "role": "owner"}}
    rows: list[tuple[str, str, dict[str, Any], tuple[int, ...]]] = [
        ("POST", "/v1/jobs", post, (201, 201, 201, 403, 403, 401)),
        ("GET", f"/v1/jobs/{job}", {}, (200, 200, 200, 200, 404, 401)),
        ("GET", f"/v1/jobs/{NOBODY}", {}, (404, 404, 404, 404, 404, 401)),
        ("GET", f"/v1/jobs/{job}/events", {}, (200, 200, 200, 200, 404, 401)),
        ("GET", f"/v1/jobs/{job}/wait?timeout=0", {}, (200, 200, 200, 200, 404, 401)),
        ("GET", f"/v1/jobs/{job}/logs", {}, (409, 409, 409, 409, 404, 401)),
        ("DELETE", f"/v1/jobs/{job}", {}, (202, 202, 202, 403, 404, 401)),
        ("POST", f"/v1/jobs/{job}/cancel", {}, (202, 202, 202, 403, 404, 401)),
        ("GET", "/v1/jobs", {}, (200, 200, 200, 200, 200, 401)),
        ("GET", f"/v1/events?job={job}&after=99", {}, (410, 410, 410, 410, 404, 401)),
        ("GET", "/v1/nodes", {}, (200, 200, 200, 200, 200, 401)),
        ("POST", "/v1/nodes/node-1/cordon", {}, (200, 200, 403, 403, 403, 401)),
        ("GET", "/v1/queues", {}, (200, 200, 200, 200, 200, 401)),
        ("PUT", "/v1/queues/fast", {"json": {"gpu_quota": 1}}, (200, 200, 403, 403, 403, 401)),
        ("GET", "/v1/projects", {}, (200, 200, 200, 200, 200, 401)),
        ("PUT", "/v1/projects/speech", {"json": {}}, (200, 403, 403, 403, 403, 401)),
        ("GET", "/v1/tokens", {}, (200, 403, 403, 403, 403, 401)),
        ("POST", "/v1/tokens", token, (422, 403, 403, 403, 403, 401)),
        ("DELETE", "/v1/tokens/token-x", {}, (404, 403, 403, 403, 403, 401)),
        ("GET", "/v1/usage", {}, (200, 200, 200, 200, 200, 401)),
        ("GET", "/v1/audit", {}, (200, 200, 403, 403, 403, 401)),
        ("GET", "/v1/me", {}, (200, 200, 200, 200, 200, 401)),
        ("GET", "/healthz", {}, (200,) * 6),
        ("GET", "/readyz", {}, (200,) * 6),
        ("GET", "/openapi.json", {}, (200,) * 6),
        ("GET", "/docs", {}, (200,) * 6),
    ]
    wrong: dict[str, Any] = {}
    for method, path, options, expected in rows:
        got = tuple([(await client.request(method, path, **options)).status_code for client in who.values()])
        if got != expected:
            wrong[f"{method} {path}"] = (got, "expected", expected)
    assert wrong == {}


async def test_credentials_that_are_none(gateway: Gateway) -> None:
    for header in (
        "Bearer wrong",
        f"Bearer {ADMIN_TOKEN}x",
        f"Basic {ADMIN_TOKEN}",
        ADMIN_TOKEN,
        "Bearer",
        "Bearer " + "x" * 600,
        "Bearer \xff",
    ):
        headers = [(b"authorization", header.encode("latin-1"))]
        answer = await gateway.client(None).get("/v1/me", headers=headers)
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_revoked_token_stops_at_once(gateway: Gateway) -> None:
    made = (
        await gateway.http.post("/v1/tokens", json={"name": "ci", "role": "viewer", "projects": ["default"]})
    ).json()
    client = gateway.client(made["token"])
    assert (await client.get("/v1/me")).json() == {"name": "ci", "role": "viewer", "projects": ["default"]}

    assert (await gateway.http.delete(f"/v1/tokens/{made['id']}")).status_code == 204
    assert (await client.get("/v1/me")).status_code == 401
    assert (await gateway.http.delete(f"/v1/tokens/{made['id']}")).status_code == 404


async def test_tokens_are_checked_before_they_are_made(gateway: Gateway) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"name": "ci", "role": "owner"}, 422, "role"),
        ({"name": "../ci", "role": "admin"}, 422, "name"),
        ({"name": "ci", "role": "submitter"}, 422, "projects"),
        ({"name": "ci", "role": "operator", "projects": ["default"]}, 422, "projects"),
        ({"name": "ci", "role": "viewer", "projects": ["default", "nobody"]}, 422, "projects.1"),
        ({"name": "ci", "role": "viewer", "projects": ["default"], "token": "mine"}, 422, "token"),
        ({"name": "admin", "role": "admin"}, 409, "name"),
    ]
    for body, status, field in cases:
        answer = await gateway.http.post("/v1/tokens", json=body)
        assert (answer.status_code, fields_of(answer)) == (status, [field]), body
    listed = (await gateway.http.get("/v1/tokens")).json()["items"]
    assert [item["name"] for item in listed] == ["admin"]


async def test_a_name_can_be_used_again_after_its_token_was_revoked(gateway: Gateway) -> None:
    body = {"name": "ci", "role": "operator"}
    first = await gateway.http.post("/v1/tokens", json=body)
    assert (await gateway.http.post("/v1/tokens", json=body)).status_code == 409
    await gateway.http.delete(f"/v1/tokens/{first.json()['id']}")

    assert (await gateway.http.post("/v1/tokens", json=body)).status_code == 201


async def test_the_admin_token_is_the_setting(runtime: Runtime) -> None:
    async with running_gateway(runtime) as gateway:
        assert (await gateway.http.get("/v1/me")).json()["role"] == "admin"
        assert (await gateway.http.delete("/v1/tokens/token-bootstrap")).status_code == 409
    renewed = "another-token-of-24-chars"
    async with running_gateway(runtime, admin_token=renewed) as gateway:
        assert (await gateway.http.get("/v1/me")).status_code == 401
        assert (await gateway.client(renewed).get("/v1/me")).json()["role"] == "admin"


async def test_lists_and_events_show_only_ones_own_projects(gateway: Gateway) -> None:
    ours = await gateway.submit()
    theirs = await gateway.submit(project="vision")
    outsider = await gateway.caller("vision-ci", "viewer", "vision")

    async with event_stream(outsider) as events:
        await gateway.publish(fact("queued", ours), fact("queued", theirs, project_id="vision"))
        [event] = await events.take(1)
        assert event["job_id"] == theirs

    listed = (await outsider.get("/v1/jobs")).json()["items"]
    assert [job["id"] for job in listed] == [theirs]
    assert (await outsider.get("/v1/jobs?project=default")).json() == {"items": [], "next_cursor": None}
    assert (await outsider.get("/v1/projects")).json() == {"items": [{"name": "vision"}]}


async def test_submitting_elsewhere_tells_nothing_of_what_is_there(gateway: Gateway) -> None:
    client = await gateway.caller("ci", "submitter", "vision")
    details = []
    for project in ("default", "nobody-has-this"):
        answer = await client.post("/v1/jobs", json=document(project=project))
        assert (answer.status_code, fields_of(answer)) == (403, ["project"])
        details.append(answer.json()["detail"].replace(project, "P"))
    assert details[0] == details[1]


async def test_answers_carry_security_headers(gateway: Gateway) -> None:
    for path in ("/v1/me", "/v1/jobs/x", "/docs", "/healthz"):
        answer = await gateway.client(None).get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    answer = await gateway.http.get("/v1/me", headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers
