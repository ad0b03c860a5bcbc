"""The clients as a program uses them: what they return, repeat, resume and raise."""

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest

from support.gateway_double import TOKEN, GatewayDouble
from yard_client import calls
from yard_client.aio import AsyncYardClient
from yard_client.client import YardClient
from yard_client.errors import Refused, ServerFault, Unreachable
from yard_client.retry import RetryPolicy
from yard_runtime.http import Problem

DOCUMENT = {"name": "a", "run": {"command": ["true"]}}
QUICK = RetryPolicy(budget_seconds=5, first_pause_seconds=0.01)


@pytest.fixture
def client(gateway: GatewayDouble) -> Iterator[YardClient]:
    with YardClient(gateway.url, TOKEN, retry=QUICK) as client:
        yield client


def test_submitting_with_a_key_is_submitting_once(client: YardClient, gateway: GatewayDouble) -> None:
    first = client.submit(DOCUMENT, idempotency_key="k")
    gateway.state.faults = [("/v1/jobs", "break"), ("/v1/jobs", Problem(503, "Away"))]
    assert client.submit(DOCUMENT, idempotency_key="k") == first
    assert client.submit(DOCUMENT)["id"] != first["id"], "without a key of the caller's it is another job"
    assert len(gateway.state.jobs) == 2


def test_a_refusal_carries_the_problem(client: YardClient) -> None:
    with pytest.raises(Refused) as caught:
        client.submit({"name": "A!", "run": {"command": []}})
    assert caught.value.status == 422
    assert {error["field"] for error in caught.value.errors} == {"name", "run.command"}
    with pytest.raises(Refused, match="There is no job") as caught:
        client.job("job-" + "9" * 26)
    assert (caught.value.status, caught.value.body["title"]) == (404, "Not found")


def test_retry_after_is_honoured(gateway: GatewayDouble) -> None:
    slept: list[float] = []
    gateway.state.faults = [("/v1/me", Problem(503, "Away", headers={"Retry-After": "3"}))]
    with YardClient(gateway.url, TOKEN, retry=QUICK, sleep=slept.append) as client:
        assert client.me()["name"] == "alice"
    assert slept == [3.0]


def test_what_stays_away_is_given_up(gateway: GatewayDouble) -> None:
    gateway.state.faults = [("/v1/me", Problem(503, "Away", headers={"Retry-After": "60"}))]
    with YardClient(gateway.url, TOKEN, retry=QUICK) as client, pytest.raises(ServerFault) as caught:
        client.me()
    assert caught.value.status == 503
    gateway.stop()
    once = RetryPolicy(budget_seconds=0)
    with YardClient(gateway.url, TOKEN, retry=once) as client, pytest.raises(Unreachable, match="connection refused"):
        client.me()
    gateway.start()


def test_all_pages_are_read_and_no_more_than_asked(client: YardClient, gateway: GatewayDouble) -> None:
    ids = [gateway.add() for _ in range(5)]
    query = calls.params(limit=2)
    page = client.send(calls.list_jobs(query))
    assert page["next_cursor"] is not None
    assert [job["id"] for job in client.jobs()] == ids[::-1]
    assert [job["id"] for job in client.jobs(limit=3)] == ids[:1:-1]


def test_events_of_a_job_are_read_page_by_page(client: YardClient, gateway: GatewayDouble) -> None:
    job = gateway.add()
    gateway.running(job)
    gateway.end(job)
    assert list(client.job_events(job, page=1)) == gateway.state.events


def test_names_cannot_leave_their_path(client: YardClient, gateway: GatewayDouble) -> None:
    with pytest.raises(Refused):
        client.job("../queues?x=")
    assert gateway.state.received[-1].path.startswith("/v1/jobs/../queues")
    assert gateway.state.received[-1].query == {}


def test_events_resume_after_the_last_one_seen(client: YardClient, gateway: GatewayDouble) -> None:
    for _ in range(3):
        gateway.add()
    size = len(str(gateway.state.events[0]))
    gateway.state.cuts = [size + 200, 0, 40]
    assert list(islice(client.events(after=0), 3)) == gateway.state.events
    resumed = [request.headers["last-event-id"] for request in gateway.state.received]
    assert resumed[0] == "0"
    assert int(resumed[-1]) > 0


async def test_the_async_client_follows_many_at_once(gateway: GatewayDouble) -> None:
    jobs = [gateway.add(f"j{number}") for number in range(20)]
    gateway.state.cuts = [3] * 10
    async with AsyncYardClient(gateway.url, TOKEN, retry=QUICK) as client:

        async def output(job: str) -> bytes:
            return b"".join([chunk async for chunk in client.logs(job, follow=True)])

        reading = [asyncio.create_task(output(job)) for job in jobs]
        await asyncio.to_thread(gateway.until, lambda state: len(state.received) >= len(jobs))
        for job in jobs:
            await asyncio.to_thread(gateway.running, job)
            await asyncio.to_thread(gateway.write, job, job.encode() * 10)
            await asyncio.to_thread(gateway.end, job)
        assert [await task for task in reading] == [job.encode() * 10 for job in jobs]
        assert (await client.send(calls.get_job(jobs[0])))["state"] == "succeeded"
        seen = [event async for event in _first(client, 3)]
    assert seen == gateway.state.events[:3]


async def _first(client: AsyncYardClient, count: int):
    async for event in client.events(after=0):
        yield event
        count -= 1
        if count == 0:
            return


async def test_the_async_client_raises_the_same_errors(gateway: GatewayDouble) -> None:
    async with AsyncYardClient(gateway.url, "wrong", retry=QUICK) as client:
        with pytest.raises(Refused) as caught:
            await client.send(calls.me())
    assert caught.value.status == 401
    gateway.state.faults = [("/v1/tokens", "break")]
    async with AsyncYardClient(gateway.url, TOKEN, retry=QUICK) as client:
        with pytest.raises(Unreachable):
            await client.send(calls.create_token("ci", "admin", []))
    assert len(gateway.state.tokens) == 1
