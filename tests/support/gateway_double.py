"""A gateway of a test's own: the HTTP contract over real sockets, with jobs that the test moves by hand.

It stands in for the services behind the API, not for HTTP: streams are chunked, break, resume and end as real ones.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yard_domain.reasons import sentence
from yard_events.job_document import JobDocument
from yard_runtime.http import Problem, install_problem_handlers

TOKEN = "test-token-0123456789"
ENDED = {"succeeded", "failed", "cancelled", "expired"}
T = TypeVar("T")


@dataclass
class TaskLog:
    data: bytes = b""
    ended: bool = False


@dataclass
class Received:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class State:
    """All that the double knows. It outlives a restart of the server."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[tuple[str, int, int], TaskLog] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    queues: dict[str, int] = field(default_factory=lambda: {"default": 8})
    projects: list[str] = field(default_factory=lambda: ["default"])
    tokens: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    silent_services: list[str] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    # Answers instead of the next ones, by path: a Problem, or "break" to cut the connection after the work was done.
    faults: list[tuple[str, Problem | str]] = field(default_factory=list)
    # Streams of logs and events end after so many bytes; each number is used once. `quietly`: as if they were whole.
    cuts: list[int] = field(default_factory=list)
    quietly: bool = False


class GatewayDouble:
    """Runs on a thread and an event loop of its own. Tests change its state through the methods below."""

    def __init__(self) -> None:
        self.state = State()
        self.on_submit: Callable[[dict[str, Any]], None] = lambda _job: None
        self._changed = asyncio.Event()
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # --- the server ---

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(_app(self), log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._changed = asyncio.Event()
            self._loop.call_soon(ready.set)
            await self._server.serve(sockets=[listener])

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        """Ends the server at once, open streams included; what it knows stays."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def change(self, work: Callable[[State], T]) -> T:
        """Runs `work` on the server's loop and wakes all that wait for a change."""

        async def run() -> T:
            result = work(self.state)
            self.notify()
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_change(self) -> None:
        await self._changed.wait()

    def until(self, condition: Callable[[State], bool], seconds: float = 15) -> None:
        """Returns as soon as the state fulfils the condition; fails after `seconds`."""

        async def run() -> None:
            async with asyncio.timeout(seconds):
                while not condition(self.state):
                    await self.wait_change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(seconds + 5)

    # --- jobs, moved by the test ---

    def add(self, name: str = "train", **fields: Any) -> str:
        return self.change(lambda state: add_job(state, {"name": name, "run": {"command": ["true"]}}, **fields))

    def running(self, job_id: str, attempt: int = 1) -> None:
        self.change(lambda state: start_job(state, job_id, attempt))

    def write(self, job_id: str, data: bytes, *, rank: int = 0, attempt: int = 1) -> None:
        def work(state: State) -> None:
            state.logs[job_id, attempt, rank].data += data

        self.change(work)

    def end(self, job_id: str, state_name: str = "succeeded", **fields: Any) -> None:
        self.change(lambda state: end_job(state, job_id, state_name, **fields))


def add_job(state: State, document: dict[str, Any], **fields: Any) -> str:
    spec = JobDocument.model_validate(document).to_json_dict()
    job_id = f"job-{len(state.jobs):026d}"
    state.jobs[job_id] = {
        "id": job_id, "name": spec["name"], "project": spec["project"], "queue": spec["queue"], "tier": spec["tier"],
        "priority": spec["priority"], "state": "queued", "reason": None, "reason_text": None, "detail": None,
        "attempt": 1, "tasks": {"cpus": None, "memory": None, **spec["tasks"]}, "spec": spec, "submitted_by": "alice",
        "submitted_at": f"2026-01-01T00:00:{len(state.jobs) % 60:02d}Z", "started_at": None, "ended_at": None,
        "exit_code": None, "labels": spec["labels"], "places": [], "task_ends": [], **fields,
    }  # fmt: skip
    _event(state, job_id, "queued")
    return job_id


def start_job(state: State, job_id: str, attempt: int = 1) -> None:
    job = state.jobs[job_id]
    job.update(state="running", attempt=attempt, started_at="2026-01-01T00:01:00Z", reason=None, reason_text=None)
    job["places"] = [
        {"task_rank": rank, "allocation_id": f"al-{rank}", "node": "node-1", "device_uuids": [f"GPU-{rank}"],
         "attempt": attempt}
        for rank in range(job["tasks"]["count"])
    ]  # fmt: skip
    for rank in range(job["tasks"]["count"]):
        state.logs[job_id, attempt, rank] = TaskLog()
    _event(state, job_id, "running")


def end_job(state: State, job_id: str, name: str = "succeeded", **fields: Any) -> None:
    job = state.jobs[job_id]
    reason = fields.get("reason")
    job.update(state=name, ended_at="2026-01-01T00:03:10Z", reason_text=sentence(reason) if reason else None, **fields)
    for (owner, _attempt, _rank), log in state.logs.items():
        if owner == job_id:
            log.ended = True
    _event(state, job_id, name)


def _event(state: State, job_id: str, fact: str) -> None:
    job = state.jobs[job_id]
    data = {key: job[key] for key in ("name", "queue", "state", "attempt", "reason", "detail", "exit_code")}
    state.events.append(
        {"seq": len(state.events) + 1, "type": f"yard.jobs.{fact}.v1", "time": "2026-01-01T00:01:00Z",
         "job_id": job_id, "project": job["project"], "node": None, "data": {"job_id": job_id, **data}}
    )  # fmt: skip


@contextmanager
def gateway_double() -> Iterator[GatewayDouble]:
    gateway = GatewayDouble()
    try:
        yield gateway
    finally:
        gateway.stop()


class _CutConnection(Exception):
    """Raised inside an answer, so that the server drops the connection in the middle of it."""


def _app(gateway: GatewayDouble) -> FastAPI:
    app = FastAPI()
    install_problem_handlers(app)

    app.add_middleware(_Door, gateway=gateway)
    _job_routes(app, gateway)
    _stream_routes(app, gateway)
    _other_routes(app, gateway)
    _dead_letter_routes(app, gateway)
    return app


class _Door:
    """Records each request, checks its token and plays the faults. Pure ASGI: a broken stream must stay broken."""

    def __init__(self, app: ASGIApp, gateway: GatewayDouble) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._gateway.state
        request = Request(scope, receive)
        body = await request.body()

        unread = [body]

        async def again() -> Message:
            """The body once; after it what the connection says, which is when it ends."""
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def discard(_message: Message) -> None: ...

        state.received.append(
            Received(request.method, request.url.path, dict(request.query_params), dict(request.headers), body)
        )
        self._gateway.notify()
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return await Problem(401, "Unauthorized", "The token is not valid.").response()(scope, again, send)
        fault = next((fault for fault in state.faults if request.url.path.startswith(fault[0])), None)
        if fault is None:
            return await self._app(scope, again, send)
        state.faults.remove(fault)
        if isinstance(fault[1], Problem):
            return await fault[1].response()(scope, again, send)
        await self._app(scope, again, discard)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise _CutConnection


def _job(state: State, job_id: str) -> dict[str, Any]:
    if job_id not in state.jobs:
        raise Problem(404, "Not found", f"There is no job {job_id}.")
    return state.jobs[job_id]


def _job_routes(app: FastAPI, gateway: GatewayDouble) -> None:
    @app.post("/v1/jobs")
    async def submit(request: Request) -> Response:
        state, body = gateway.state, await request.body()
        key = request.headers.get("idempotency-key")
        if len(body) > 256 * 1024:
            raise Problem(413, "Content too large", "A job document has at most 256 KiB.")
        if key in state.keys:
            known, job_id = state.keys[key]
            if known != body:
                raise Problem(409, "Conflict", "This Idempotency-Key was used with another document.")
            return JSONResponse(state.jobs[job_id], 200)
        try:
            document = yaml.safe_load(body) if "yaml" in request.headers["content-type"] else json.loads(body)
            job_id = add_job(state, document)
        except ValidationError as error:
            items = [
                {"field": ".".join(str(part) for part in item["loc"]), "message": item["msg"]}
                for item in error.errors()
            ]
            raise Problem(422, "Invalid job document", errors=items) from None
        if key:
            state.keys[key] = (body, job_id)
        gateway.on_submit(state.jobs[job_id])
        gateway.notify()
        return JSONResponse(state.jobs[job_id], 201, headers={"Location": f"/v1/jobs/{job_id}"})

    @app.get("/v1/jobs")
    async def list_jobs(
        project: str | None = None,
        queue: str | None = None,
        state: str | None = None,
        name: str | None = None,
        label: str | None = None,
        active: bool | None = None,
        limit: int = 50,
        cursor: int = 0,
    ) -> dict[str, Any]:
        def wanted(job: dict[str, Any]) -> bool:
            return (
                project in (None, job["project"])
                and queue in (None, job["queue"])
                and (state is None or job["state"] in state.split(","))
                and name in (None, job["name"])
                and (label is None or label.partition("=")[2] == job["labels"].get(label.partition("=")[0]))
                and (active is None or active == (job["state"] not in ENDED))
            )

        found = [job for job in reversed(gateway.state.jobs.values()) if wanted(job)]
        page = [{key: value for key, value in job.items() if key != "spec"} for job in found[cursor : cursor + limit]]
        return {"items": page, "next_cursor": str(cursor + limit) if cursor + limit < len(found) else None}

    @app.get("/v1/jobs/{job_id}")
    async def get_job(job_id: str) -> dict[str, Any]:
        return _job(gateway.state, job_id)

    @app.post("/v1/jobs/{job_id}/cancel", status_code=202)
    async def cancel(job_id: str) -> dict[str, Any]:
        job = _job(gateway.state, job_id)
        if job["state"] in ENDED:
            raise Problem(409, "Conflict", f"The job has already ended: {job['state']}.")
        if job["state"] == "running":
            job["state"] = "cancelling"
        else:
            end_job(gateway.state, job_id, "cancelled", reason="cancelled")
        gateway.notify()
        return job

    @app.get("/v1/jobs/{job_id}/wait")
    async def wait(job_id: str, timeout: float = 30) -> dict[str, Any]:
        job = _job(gateway.state, job_id)
        try:
            async with asyncio.timeout(timeout):
                while job["state"] not in ENDED:
                    await gateway.wait_change()
        except TimeoutError:
            pass
        return deepcopy(job)

    @app.get("/v1/jobs/{job_id}/events")
    async def job_events(job_id: str, limit: int = 100, after: int = 0) -> dict[str, Any]:
        _job(gateway.state, job_id)
        items = [event for event in gateway.state.events if event["job_id"] == job_id and event["seq"] > after]
        return {"items": items[:limit]}


def _stream_routes(app: FastAPI, gateway: GatewayDouble) -> None:
    @app.get("/v1/jobs/{job_id}/logs")
    async def logs(
        job_id: str, task: int = 0, attempt: int | None = None, offset: int = 0, follow: bool = False
    ) -> Response:
        job = _job(gateway.state, job_id)
        while (job_id, attempt or job["attempt"], task) not in gateway.state.logs:
            if not follow or job["state"] in ENDED:
                raise Problem(409, "No output yet", "The task has not started.")
            await gateway.wait_change()
        log = gateway.state.logs[job_id, attempt or job["attempt"], task]
        body = _cut(gateway.state, _follow(gateway, log, offset, follow))
        return StreamingResponse(body, media_type="application/octet-stream", headers={"X-Yard-Offset": str(offset)})

    @app.get("/v1/events")
    async def events(request: Request, job: str | None = None, type: str | None = None) -> Response:
        state = gateway.state
        start = int(request.headers.get("last-event-id", len(state.events)))

        async def body() -> AsyncIterator[bytes]:
            yield b": keep-alive\n\n"
            sent = start
            while True:
                for event in state.events[sent:]:
                    sent = event["seq"]
                    if job in (None, event["job_id"]) and type in (None, event["type"]):
                        yield f"id: {sent}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                await gateway.wait_change()

        return StreamingResponse(_cut(state, body()), media_type="text/event-stream")


async def _follow(gateway: GatewayDouble, log: TaskLog, offset: int, follow: bool) -> AsyncIterator[bytes]:
    position = offset
    while True:
        chunk = log.data[position : position + 1000]
        position += len(chunk)
        if chunk:
            yield chunk
        elif log.ended or not follow:
            return
        else:
            await gateway.wait_change()


async def _cut(state: State, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body, broken off in the middle where the test asked for it."""
    left = state.cuts.pop(0) if state.cuts else None
    async for chunk in body:
        if left is not None and len(chunk) >= left:
            yield chunk[:left]
            if state.quietly:
                return
            raise _CutConnection
        left = None if left is None else left - len(chunk)
        yield chunk


def _other_routes(app: FastAPI, gateway: GatewayDouble) -> None:
    state = gateway.state

    def queue_of(name: str) -> dict[str, Any]:
        return {"name": name, "gpu_quota": state.queues[name], "used_gpus": 2, "queued_jobs": 1, "running_jobs": 2}

    @app.get("/v1/nodes")
    async def nodes() -> dict[str, Any]:
        return {"items": state.nodes}

    @app.post("/v1/nodes/{name}/{verb}")
    async def cordon(name: str, verb: str) -> dict[str, Any]:
        node = next((node for node in state.nodes if node["name"] == name), None)
        if node is None:
            raise Problem(404, "Not found", f"There is no node {name}.")
        node["cordoned"] = verb == "cordon"
        return node

    @app.get("/v1/queues")
    async def queues() -> dict[str, Any]:
        return {"items": [queue_of(name) for name in state.queues]}

    @app.put("/v1/queues/{name}")
    async def set_queue(name: str, request: Request) -> dict[str, Any]:
        state.queues[name] = (await request.json())["gpu_quota"]
        return queue_of(name)

    @app.get("/v1/projects")
    async def projects() -> dict[str, Any]:
        return {"items": [{"name": name} for name in state.projects]}

    @app.put("/v1/projects/{name}")
    async def create_project(name: str) -> dict[str, Any]:
        state.projects.append(name)
        return {"name": name}

    @app.get("/v1/tokens")
    async def tokens() -> dict[str, Any]:
        return {"items": state.tokens}

    @app.post("/v1/tokens", status_code=201)
    async def create_token(request: Request) -> dict[str, Any]:
        token = {"id": f"tok-{len(state.tokens)}", **(await request.json())}
        state.tokens.append(token)
        return {**token, "token": "yard_secret"}

    @app.delete("/v1/tokens/{token_id}", status_code=204)
    async def revoke(token_id: str) -> Response:
        state.tokens[:] = [token for token in state.tokens if token["id"] != token_id]
        return Response(status_code=204)

    @app.get("/v1/usage")
    async def usage() -> dict[str, Any]:
        return state.usage

    @app.get("/v1/audit")
    async def audit() -> dict[str, Any]:
        return state.audit

    @app.get("/v1/me")
    async def me() -> dict[str, Any]:
        return {"name": "alice", "role": "submitter", "projects": ["default"]}


def _dead_letter_routes(app: FastAPI, gateway: GatewayDouble) -> None:
    state = gateway.state
    one = "/v1/dlq/{service}/{topic}/{partition}/{offset}"

    def wanted(service: str | None, key: str | None) -> list[dict[str, Any]]:
        return [
            letter for letter in state.dead_letters
            if service in (None, letter["service"]) and key in (None, letter["key"])
            and letter["service"] not in state.silent_services
        ]  # fmt: skip

    def silent() -> list[dict[str, str]]:
        return [{"service": name, "detail": "It does not answer."} for name in state.silent_services]

    def letter_at(service: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
        for letter in state.dead_letters:
            if (letter["service"], letter["topic"], letter["partition"], letter["offset"]) == (
                service, topic, partition, offset
            ):  # fmt: skip
                return letter
        raise Problem(404, "Not found", f"No dead letter is at {topic}/{partition}@{offset}.")

    def behind(letter: dict[str, Any]) -> int:
        return sum(other["key"] == letter["key"] and other["offset"] > letter["offset"] for other in state.dead_letters)

    @app.get("/v1/dlq")
    async def letters(service: str | None = None, key: str | None = None, limit: int = 100) -> dict[str, Any]:
        found = wanted(service, key)
        hidden = ("headers", "value", "value_encoding")
        items = [{name: part for name, part in letter.items() if name not in hidden} for letter in found[:limit]]
        return {"items": items, "total": len(found), "unavailable": silent()}

    @app.post("/v1/dlq/retry", status_code=202)
    async def retry_all(service: str | None = None, key: str | None = None) -> dict[str, Any]:
        counts: dict[str, int] = {}
        for letter in wanted(service, key):
            letter["retry_requested_at"] = "2026-01-01T00:00:00Z"
            counts[letter["service"]] = counts.get(letter["service"], 0) + 1
        items = [{"service": name, "records": count} for name, count in counts.items()]
        return {"items": items, "unavailable": silent()}

    @app.get(one)
    async def show(service: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
        letter = letter_at(service, topic, partition, offset)
        return letter | {"behind": behind(letter)}

    @app.post(f"{one}/retry", status_code=202)
    async def retry(service: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
        key = letter_at(service, topic, partition, offset)["key"]
        return {"service": service, "key": key, "records": len(wanted(service, key))}

    @app.delete(one)
    async def discard(service: str, topic: str, partition: int, offset: int) -> dict[str, Any]:
        letter = letter_at(service, topic, partition, offset)
        state.dead_letters.remove(letter)
        return letter | {"behind": behind(letter)}
