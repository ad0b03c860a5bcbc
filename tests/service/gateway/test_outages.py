"""The database away, at rest and at a COMMIT; slow and silent clients; an address that is taken."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from sqlalchemy import text

from support.contract import event, until
from support.gateway import Gateway, document, event_stream, fact, raw_exchange, running_gateway
from support.log import events_of
from support.severing_proxy import Sever, SeveringProxy
from yard_bus.postgres import PostgresBus
from yard_domain.errors import Retryable
from yard_events.job_document import JobDocument
from yard_events.registry import JOBS_REQUESTS
from yard_gateway.submissions import Submission, SubmitBatcher
from yard_runtime.service import Runtime
from yard_store.engine import create_engine


@dataclass
class Behind:
    """A gateway whose every connection to PostgreSQL goes through a proxy."""

    gateway: Gateway
    proxy: SeveringProxy
    direct: Runtime

    async def database_away(self) -> None:
        """Open connections end, new ones are refused."""
        await self.proxy.__aexit__(None, None, None)

    async def database_back(self) -> None:
        await self.proxy.__aenter__()

    async def settled(self) -> None:
        """Until the gateway's own start is committed: the next COMMIT is the test's."""

        async def planned() -> bool:
            async with self.direct.engine.connect() as connection:
                return bool(await connection.scalar(text("SELECT count(*) FROM gateway.timers")))

        await until(planned, "its first pruning is planned")
        topics = sorted(self.gateway.service._consumer.handlers)
        await self.direct.bus.publish([event(1, topic=name, kind="yard.tests.nothing.v1") for name in topics])

        async def consumed() -> bool:
            async with self.direct.engine.connect() as connection:
                return await connection.scalar(text("SELECT count(*) FROM gateway.offsets")) == len(topics)

        await until(consumed, "it reads every topic")

    async def jobs(self) -> int:
        async with self.direct.engine.connect() as connection:
            return int(await connection.scalar(text("SELECT count(*) FROM gateway.jobs")) or 0)

    async def until_accepted(self, **fields: object) -> httpx.Response:
        async with asyncio.timeout(20):
            while True:
                answer = await self.gateway.http.post("/v1/jobs", json=document(**fields))
                if answer.status_code != 503:
                    return answer


@pytest.fixture
async def behind(runtime: Runtime, database: str) -> AsyncIterator[Behind]:
    folder = Path(tempfile.mkdtemp(prefix="yard-px-"))
    parts = urlsplit(database)
    [socket_folder] = parse_qs(parts.query)["host"]
    url = parts._replace(query=f"host={quote(str(folder))}").geturl()
    async with SeveringProxy(folder, Path(socket_folder) / ".s.PGSQL.5432") as proxy:
        engine = create_engine(url, application="tests-behind")
        bus = PostgresBus(engine, clock=runtime.clock, ids=runtime.ids)
        await bus.load_topics()
        through = Runtime(engine, bus, runtime.clock, runtime.ids, "test-behind", runtime.internal_token)
        async with running_gateway(through, principal_cache_seconds=60) as gateway:
            yield Behind(gateway, proxy, runtime)
        await engine.dispose()
    shutil.rmtree(folder, ignore_errors=True)


async def test_while_the_database_is_away_everything_says_503_and_then_goes_on(behind: Behind) -> None:
    gateway = behind.gateway
    job = await gateway.submit()
    await behind.database_away()

    for method, path in (
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs"),
        ("GET", f"/v1/jobs/{job}"),
        ("DELETE", f"/v1/jobs/{job}"),
        ("GET", f"/v1/jobs/{job}/wait"),
        ("GET", "/v1/events"),
        ("GET", "/v1/tokens"),
    ):
        body = document() if path == "/v1/jobs" and method == "POST" else None
        answer = await gateway.http.request(method, path, json=body)
        assert (answer.status_code, bool(answer.headers["retry-after"])) == (503, True), (path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "sock" not in answer.text
    assert (await gateway.client("never-seen-token").get("/v1/me")).status_code == 503
    assert (await gateway.http.get("/healthz")).status_code == 200
    ready = await gateway.http.get("/readyz")
    assert (ready.status_code, ready.json()["waiting_for"]) == (503, ["database"])

    await behind.database_back()
    assert (await behind.until_accepted()).status_code == 201
    assert await behind.jobs() == 2
    assert len(await events_of(behind.direct, JOBS_REQUESTS)) == 2
    await gateway.tell(job, "queued", "cancelled")  # the consumer is back too
    assert (await gateway.http.get("/readyz")).status_code == 200


async def test_an_open_stream_survives_the_database(behind: Behind) -> None:
    gateway = behind.gateway
    job = await gateway.submit()
    async with event_stream(gateway.http) as events:
        await events.comment("connected")
        await behind.database_away()
        gateway.service.parts.feed.notify([job])
        await events.comment("the database is away")
        await behind.database_back()
        await _publish_when_back(gateway, job)
        assert [event["job_id"] for event in await events.take(1)] == [job]


async def _publish_when_back(gateway: Gateway, job: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                return await gateway.publish(fact("queued", job))
            except Retryable:
                continue


@pytest.mark.parametrize("how", list(Sever))
async def test_a_commit_of_unknown_outcome_is_cleared_up_by_the_key(behind: Behind, how: Sever) -> None:
    gateway = behind.gateway
    await gateway.submit()
    key = {"idempotency-key": "k"}
    await behind.settled()
    behind.proxy.sever_next_commit(how)
    lost = await gateway.http.post("/v1/jobs", json=document("once"), headers=key)
    assert lost.status_code == 503
    assert await behind.jobs() == (1 if how is Sever.BEFORE_COMMIT else 2)

    async with asyncio.timeout(20):
        while (answer := await gateway.http.post("/v1/jobs", json=document("once"), headers=key)).status_code == 503:
            continue
    assert answer.status_code == (201 if how is Sever.BEFORE_COMMIT else 200)
    assert await behind.jobs() == 2
    sent = [event.job_id for event in await events_of(behind.direct, JOBS_REQUESTS)]  # type: ignore[attr-defined]
    assert sent.count(answer.json()["id"]) == 1


async def test_a_client_that_does_not_finish_its_request_is_let_go(runtime: Runtime) -> None:
    async with running_gateway(runtime, head_timeout_seconds=0.2, body_timeout_seconds=0.2) as gateway:
        assert await raw_exchange(gateway, b"") == b""
        assert await raw_exchange(gateway, b"GET /v1/me HTTP/1.1\r\nhost: x\r\nx: ") == b""

        authorization = gateway.http.headers["authorization"].encode()
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nauthorization: " + authorization
        answer = await raw_exchange(gateway, head + b"\r\nconnection: close\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert (await gateway.http.get("/v1/me")).status_code == 200


async def test_an_address_that_is_taken_is_an_error_that_says_so(gateway: Gateway, second_runtime: Runtime) -> None:
    with pytest.raises(OSError, match=r"[Aa]ddress"):
        async with running_gateway(second_runtime, http=gateway.url.removeprefix("http://")):
            pass


async def test_submissions_that_wait_at_the_end_are_told(gateway: Gateway) -> None:
    """The batcher stops: nobody hangs."""
    batcher = SubmitBatcher(gateway.service.parts.store, batch_limit=1, queue_limit=10)
    parsed = JobDocument.model_validate(document())
    submission = Submission(parsed, parsed.model_dump_json(exclude_none=True).encode(), "admin", None)
    async with gateway.service.parts.store.unit_of_work():  # the writer waits for this one
        worker = asyncio.create_task(batcher.run())
        waiting = [asyncio.create_task(batcher.submit(submission)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        worker.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Retryable] * 3
