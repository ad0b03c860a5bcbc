"""A running gateway on real HTTP, with owners and an agent of the tests' own behind real unix sockets."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from yard_events.base import EventModel, wrap
from yard_events.types import (
    JobCancelled,
    JobFact,
    JobFailed,
    JobQueued,
    JobRunning,
    JobStarting,
    JobSucceeded,
    TaskEnd,
    TaskPlace,
)
from yard_gateway.app import GatewayService, build
from yard_gateway.settings import GatewaySettings
from yard_runtime.host import server_for
from yard_runtime.http import InternalOnly, Problem, install_problem_handlers, node_token
from yard_runtime.service import Runtime

ADMIN_TOKEN = "yard_the-admin-token-of-the-tests"
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def document(name: str = "train", **fields: Any) -> dict[str, Any]:
    """A job document that is fine."""
    return {"name": name, "run": {"command": ["true"]}} | fields


@dataclass
class Owners:
    """Admission, inventory, placement, billing and audit, as far as the gateway sees them."""

    queues: dict[str, int] = field(default_factory=lambda: {"default": 8})
    projects: list[str] = field(default_factory=lambda: ["default", "vision"])
    nodes: list[dict[str, Any]] = field(default_factory=list)
    used: list[dict[str, Any]] = field(default_factory=list)
    letters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Services that answer nothing about their dead letters."""
    calls: list[tuple[str, str, dict[str, Any] | None]] = field(default_factory=list)
    """(method, path with query, principal) of what was asked."""

    def app(self, internal_token: str) -> FastAPI:
        app = FastAPI(dependencies=[Depends(self._record)])
        app.add_middleware(InternalOnly, token=internal_token)
        install_problem_handlers(app)

        @app.get("/internal/admission/queues")
        async def queues() -> Any:
            return {"items": [{"name": name, "gpu_quota": quota} for name, quota in self.queues.items()]}

        @app.put("/internal/admission/queues/{name}")
        async def put_queue(name: str, body: dict[str, int]) -> Any:
            self.queues[name] = body["gpu_quota"]
            return {"name": name, **body}

        @app.get("/internal/admission/projects")
        async def projects() -> Any:
            return {"items": [{"name": name} for name in self.projects]}

        @app.put("/internal/admission/projects/{name}")
        async def put_project(name: str) -> Any:
            self.projects.append(name)
            return {"name": name}

        @app.get("/internal/inventory/nodes")
        async def nodes() -> Any:
            return {"items": self.nodes}

        @app.post("/internal/inventory/nodes/{name}/cordon")
        async def cordon(name: str) -> Any:
            for node in self.nodes:
                if node["name"] == name:
                    return node | {"cordoned": True}
            raise Problem(404, "Not found", f"There is no node {name!r}.")

        @app.get("/internal/placement/nodes")
        async def placement() -> Any:
            return {"items": self.used}

        @app.get("/internal/billing/usage")
        async def usage(request: Request) -> Any:
            if request.query_params.get("since") == "yesterday":
                raise Problem(422, "Invalid request", errors=[{"field": "since", "message": "must be an instant"}])
            return {"items": [], "total_gpu_seconds": "0.000000", "as_of": START.isoformat()}

        @app.get("/internal/audit/audit")
        async def audit() -> Any:
            return {"checked_at": START.isoformat(), "findings": [], "checks": []}

        self._dead_letter_routes(app)
        return app

    def _dead_letter_routes(self, app: FastAPI) -> None:
        @app.get("/internal/{service}/dead-letters")
        async def letters(service: str, key: str | None = None) -> Any:
            found = self._letters(service)
            return {"items": [one for one in found if key in (None, one["key"])], "total": len(found)}

        @app.post("/internal/{service}/dead-letters/retry")
        async def retry_all(service: str) -> Any:
            return {"records": len(self._letters(service))}

        @app.api_route("/internal/{service}/dead-letters/{topic}/{partition}/{offset}", methods=["GET", "DELETE"])
        async def one(service: str, topic: str, partition: int, offset: int) -> Any:
            for letter in self._letters(service):
                if (letter["topic"], letter["partition"], letter["offset"]) == (topic, partition, offset):
                    return letter | {"behind": 0}
            raise Problem(404, "Not found", f"No dead letter is at {topic}/{partition}@{offset}.")

        @app.post("/internal/{service}/dead-letters/{topic}/{partition}/{offset}/retry")
        async def retry(service: str) -> Any:
            return {"key": "a", "records": len(self._letters(service))}

    def _letters(self, service: str) -> list[dict[str, Any]]:
        if service in self.silent:
            raise Problem(503, "Service unavailable")
        return self.letters.get(service, [])

    async def _record(self, request: Request, x_yard_principal: str | None = Header(None)) -> None:
        query = f"?{request.url.query}" if request.url.query else ""
        principal = json.loads(x_yard_principal) if x_yard_principal is not None else None
        self.calls.append((request.method, request.url.path + query, principal))


@dataclass
class Output:
    """What one task printed. Change it through `write` and `end`."""

    data: bytes = b""
    ended: bool = False
    broken: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, data: bytes) -> None:
        self.data += data
        self._change()

    def end(self) -> None:
        self.ended = True
        self._change()

    def break_off(self) -> None:
        """The agent dies in the middle of an answer."""
        self.broken = True
        self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class StandInAgent:
    internal_token: str
    outputs: dict[str, Output] = field(default_factory=dict)
    following: int = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        install_problem_handlers(app)

        @app.get("/v1/nodes/{node}/allocations/{allocation_id}/log")
        async def log(
            node: str, allocation_id: str, request: Request, offset: int = 0, tail: bool = Query(False, alias="follow")
        ) -> Response:
            if request.headers.get("authorization") != f"Bearer {node_token(self.internal_token, node)}":
                raise Problem(401, "Unauthorized")
            output = self.outputs.get(allocation_id)
            if output is None:
                raise Problem(404, "No such allocation")
            stream = self._counted(_follow(output, offset)) if tail else _once(output, offset)
            return StreamingResponse(
                stream, media_type="application/octet-stream", headers={"X-Yard-Offset": str(offset)}
            )

        return app

    async def _counted(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.following += 1
        try:
            async for data in stream:
                yield data
        finally:
            self.following -= 1


async def _once(output: Output, offset: int) -> AsyncIterator[bytes]:
    yield output.data[offset:]


async def _follow(output: Output, offset: int) -> AsyncIterator[bytes]:
    while True:
        changed = output.changed
        if offset < len(output.data):
            data = output.data[offset:]
            offset += len(data)
            yield data
        elif output.broken:
            raise ConnectionError("the agent died")
        elif output.ended:
            return
        else:
            await changed.wait()


class Server:
    """One app on one unix socket; can go away and come back."""

    def __init__(self, app: FastAPI, path: Path) -> None:
        self._app = app
        self.address = f"unix:{path}"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server = server_for(self._app, self.address, graceful_seconds=0)
        self._task = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(10):
            while not self._server.started:
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._task
            self._task = None


@dataclass
class Gateway:
    """`http` calls as admin; `client(token)` as somebody else, or as nobody with None."""

    runtime: Runtime
    service: GatewayService
    url: str
    owners: Owners
    owners_server: Server
    agent: StandInAgent
    agent_server: Server
    http: httpx.AsyncClient
    clients: list[httpx.AsyncClient] = field(default_factory=list)
    _facts: int = 0

    def client(self, token: str | None) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20)
        self.clients.append(client)
        return client

    async def caller(self, name: str, role: str, *projects: str) -> httpx.AsyncClient:
        body = {"name": name, "role": role, "projects": list(projects)}
        answer = await self.http.post("/v1/tokens", json=body)
        assert answer.status_code == 201, answer.text
        return self.client(answer.json()["token"])

    async def submit(self, **fields: Any) -> str:
        answer = await self.http.post("/v1/jobs", json=document(**fields))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def publish(self, *events: EventModel) -> None:
        """As the owner would: to the log, from where the gateway consumes it."""
        envelopes = []
        for event in events:
            self._facts += 1
            envelopes.append(wrap(event, event_id=f"evt-{self._facts:08d}", source="yard/tests", time=START))
        await self.runtime.bus.publish(envelopes)

    async def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """Until the read model shows the job in one of the states."""
        async with asyncio.timeout(20):
            with self.service.parts.feed.watch(job_id) as watch:
                while True:
                    job = (await self.http.get(f"/v1/jobs/{job_id}")).json()
                    if job["state"] in states:
                        return job
                    await watch.wait(20)

    async def tell(self, job_id: str, *facts: str, **fields: Any) -> dict[str, Any]:
        """Facts of one job, folded when this returns. Returns the job."""
        await self.publish(*(fact(kind, job_id, **fields) for kind in facts))
        return await self.until(job_id, facts[-1])


_KINDS: dict[str, type[JobFact]] = {
    "queued": JobQueued,
    "starting": JobStarting,
    "running": JobRunning,
    "succeeded": JobSucceeded,
    "failed": JobFailed,
    "cancelled": JobCancelled,
}
_ORDER = list(_KINDS)


def fact(kind: str, job_id: str, **fields: Any) -> JobFact:
    """One lifecycle fact. `agent_url` goes into the place of a starting job."""
    agent_url = fields.pop("agent_url", "")
    attempt = fields.get("attempt", 1)
    values: dict[str, Any] = {
        "job_id": job_id,
        "project_id": "default",
        "queue": "default",
        "name": "train",
        "state": kind,
        "attempt": attempt,
        "at": START + timedelta(minutes=10 * attempt + _ORDER.index(kind)),
    } | fields
    if kind == "starting":
        values["tasks"] = [place(job_id, attempt, agent_url)]
    if kind == "succeeded":
        values |= {
            "exit_code": 0,
            "tasks": [TaskEnd(task_rank=0, outcome="succeeded", reason="exit_code", exit_code=0)],
        }
    return _KINDS[kind](**values)


def place(job_id: str, attempt: int, agent_url: str = "", rank: int = 0) -> TaskPlace:
    return TaskPlace(
        task_rank=rank,
        allocation_id=allocation_id(job_id, attempt, rank),
        node="node-1",
        device_uuids=[f"GPU-{rank}"],
        agent_url=agent_url,
    )


def allocation_id(job_id: str, attempt: int = 1, rank: int = 0) -> str:
    return f"{job_id}.{attempt}.{rank}"


@asynccontextmanager
async def running_gateway(runtime: Runtime, **settings: Any) -> AsyncIterator[Gateway]:
    folder = Path(tempfile.mkdtemp(prefix="yard-gw-"))
    owners, agent = Owners(), StandInAgent(runtime.internal_token)
    owners_server = Server(owners.app(runtime.internal_token), folder / "owners.sock")
    agent_server = Server(agent.app(), folder / "agent.sock")
    names = ("admission", "inventory", "placement", "billing", "audit")
    chosen = GatewaySettings(
        **{
            "http": "127.0.0.1:0",
            "upstreams": dict.fromkeys(names, owners_server.address),
            "admin_token": ADMIN_TOKEN,
            "keep_alive_seconds": 600,  # the second look must not hide a lost wake-up
            **settings,
        }
    )
    await asyncio.gather(owners_server.start(), agent_server.start())
    service = await build(chosen, runtime)
    ready = asyncio.Event()
    running = asyncio.create_task(service.run(ready.set))
    gateway: Gateway | None = None
    try:
        await _until_ready(ready, running)
        url = f"http://{service.address}"
        http = httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=20)
        gateway = Gateway(runtime, service, url, owners, owners_server, agent, agent_server, http, [http])
        yield gateway
    finally:
        for client in gateway.clients if gateway is not None else ():
            await client.aclose()
        running.cancel()
        await asyncio.gather(running, owners_server.stop(), agent_server.stop(), return_exceptions=True)
        shutil.rmtree(folder, ignore_errors=True)


async def _until_ready(ready: asyncio.Event, running: "asyncio.Task[None]") -> None:
    waiting = asyncio.create_task(ready.wait())
    async with asyncio.timeout(20):
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()


async def raw_exchange(gateway: Gateway, *parts: bytes) -> bytes:
    """Bytes over a plain connection, and all that comes back until the server closes it."""
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@dataclass
class Events:
    """An open event stream, read as it comes."""

    response: httpx.Response
    lines: AsyncIterator[str]

    async def take(self, count: int) -> list[dict[str, Any]]:
        """The next `count` events; each `id` line is checked against its data."""
        found: list[dict[str, Any]] = []
        number = 0
        async with asyncio.timeout(20):
            while len(found) < count:
                line = await anext(self.lines)
                if line.startswith("id: "):
                    number = int(line[4:])
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    assert event["seq"] == number
                    found.append(event)
        return found

    async def comment(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in await anext(self.lines):
                pass


@asynccontextmanager
async def event_stream(client: httpx.AsyncClient, query: str = "", last_id: int | None = None) -> AsyncIterator[Events]:
    headers = {"last-event-id": str(last_id)} if last_id is not None else {}
    async with client.stream("GET", f"/v1/events{query}", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response, response.aiter_lines())


def fields_of(answer: httpx.Response) -> list[str]:
    """The fields that a problem names."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    return [error["field"] for error in problem.get("errors", [])]


def sequence(events: Sequence[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]
