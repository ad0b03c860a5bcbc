"""The read model: listing, cancelling, waiting, and folding facts that come late or twice."""

import asyncio
from dataclasses import replace
from typing import Any

from sqlalchemy import text

from support.feed import Feed
from support.gateway import START, Gateway, document, event_stream, fact, running_gateway
from support.log import events_of
from yard_events.registry import JOBS_REQUESTS
from yard_events.types import CancelJob, JobStarting, QueueState, TaskEnd
from yard_gateway.directory import Directory
from yard_gateway.handlers import ReadModelHandlers
from yard_gateway.tables import TABLES
from yard_runtime.service import Runtime


async def ids(gateway: Gateway, query: str = "") -> list[str]:
    return [job["id"] for job in (await gateway.http.get(f"/v1/jobs{query}")).json()["items"]]


async def test_pages_are_newest_first_and_complete(gateway: Gateway) -> None:
    made = [await gateway.submit(name=f"job-{n}") for n in range(7)]
    seen: list[str] = []
    query = "?limit=3"
    for _ in range(3):
        page = (await gateway.http.get(f"/v1/jobs{query}")).json()
        seen += [job["id"] for job in page["items"]]
        assert all("spec" not in job for job in page["items"])
        if page["next_cursor"] is not None:
            await gateway.submit(name="later")  # must not shift the pages that follow
            query = f"?limit=3&cursor={page['next_cursor']}"

    assert page["next_cursor"] is None
    assert seen == made[::-1]


async def test_filters(gateway: Gateway) -> None:
    await gateway.http.put("/v1/queues/fast", json={"gpu_quota": 1})
    plain = await gateway.submit()
    fast = await gateway.submit(queue="fast", name="quick", labels={"team": "nlp", "run": "a=b"})
    vision = await gateway.submit(project="vision", labels={"team": "cv"})
    await gateway.tell(plain, "queued", "starting", "running", "succeeded")
    await gateway.tell(fast, "queued")

    cases: dict[str, list[str]] = {
        "": [vision, fast, plain],
        "?queue=fast": [fast],
        "?project=vision": [vision],
        "?name=quick": [fast],
        "?state=succeeded,queued": [fast, plain],
        "?state=running": [],
        "?active=true": [vision, fast],
        "?active=false": [plain],
        "?label=team%3Dnlp": [fast],
        "?label=team%3Dnlp&label=run%3Da%3Db": [fast],
        "?label=team%3Dnlp&label=run%3Dother": [],
        "?project=default&active=true": [fast],
    }
    assert {query: await ids(gateway, query) for query in cases} == cases


async def test_a_life_as_people_see_it(gateway: Gateway) -> None:
    job = await gateway.submit()
    waiting = await gateway.tell(job, "queued", reason="insufficient_gpu", detail="needs 2, 1 free")
    assert (waiting["reason"], waiting["detail"]) == ("insufficient_gpu", "needs 2, 1 free")
    assert waiting["reason_text"].startswith("Not enough free GPUs")

    running = await gateway.tell(job, "starting", "running")
    assert running["reason"] is None
    assert running["started_at"] == fact("running", job).at.isoformat().replace("+00:00", "Z")
    assert running["places"] == [
        {"task_rank": 0, "allocation_id": f"{job}.1.0", "node": "node-1", "device_uuids": ["GPU-0"], "attempt": 1}
    ]
    ended = await gateway.tell(job, "succeeded")
    assert (ended["exit_code"], ended["attempt"]) == (0, 1)
    assert ended["task_ends"][0]["outcome"] == "succeeded"
    assert ended["ended_at"] > ended["started_at"]


async def test_a_second_attempt_keeps_the_places_of_the_first(gateway: Gateway) -> None:
    job = await gateway.submit()
    await gateway.tell(job, "queued", "starting", "running")
    waiting = await gateway.tell(job, "queued", reason="retry", attempt=2)
    assert (waiting["attempt"], waiting["started_at"]) == (2, None)

    running = await gateway.tell(job, "starting", "running", attempt=2)
    assert [place["attempt"] for place in running["places"]] == [1, 2]
    assert running["started_at"] is not None


async def test_start_and_end_told_at_once(gateway: Gateway) -> None:
    """A short run: no "running" is told, and the job has started all the same."""
    job = await gateway.submit()
    ended = await gateway.tell(job, "queued", "starting", "succeeded")

    assert ended["started_at"] is not None


async def test_cancelling(gateway: Gateway) -> None:
    job = await gateway.submit()
    answer = await gateway.http.delete(f"/v1/jobs/{job}")

    assert (answer.status_code, answer.json()["id"]) == (202, job)
    sent = [event for event in await events_of(gateway.runtime, JOBS_REQUESTS) if isinstance(event, CancelJob)]
    assert [(event.job_id, event.requested_by) for event in sent] == [(job, "admin")]

    await gateway.tell(job, "queued", "cancelled")
    again = await gateway.http.post(f"/v1/jobs/{job}/cancel")
    assert (again.status_code, again.json()["state"]) == (409, "cancelled")


async def test_wait_answers_at_the_end(gateway: Gateway) -> None:
    job = await gateway.submit()
    await gateway.tell(job, "queued")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        waiting = [group.create_task(gateway.http.get(f"/v1/jobs/{job}/wait?timeout=60")) for _ in range(5)]
        await gateway.tell(job, "starting", "running")
        assert not any(task.done() for task in waiting)
        await gateway.publish(fact("succeeded", job))
    assert [task.result().json()["state"] for task in waiting] == ["succeeded"] * 5


async def test_wait_answers_at_its_timeout(gateway: Gateway) -> None:
    job = await gateway.submit()
    answer = await gateway.http.get(f"/v1/jobs/{job}/wait?timeout=0.05")

    assert (answer.status_code, answer.json()["state"]) == (200, "submitted")


async def test_too_many_open_answers_are_told_to_come_back(runtime: Runtime) -> None:
    async with running_gateway(runtime, max_streams=1) as gateway:
        job = await gateway.submit()
        async with event_stream(gateway.http) as events:
            await events.comment("connected")
            for path in (f"/v1/jobs/{job}/wait?timeout=0", f"/v1/jobs/{job}/logs?follow=true", "/v1/events"):
                answer = await gateway.http.get(path)
                assert (answer.status_code, bool(answer.headers["retry-after"])) == (503, True), path
        async with asyncio.timeout(20):  # the place is given back when the server sees that the client is gone
            while (await gateway.http.get(f"/v1/jobs/{job}/wait?timeout=0")).status_code == 503:
                await asyncio.sleep(0.01)


async def test_a_queue_told_by_admission_is_known(gateway: Gateway) -> None:
    await gateway.submit()
    await gateway.owners_server.stop()
    job = await gateway.submit()
    await gateway.publish(QueueState(queue="fast", gpu_quota=3, at=START))
    await gateway.tell(job, "queued")
    async with asyncio.timeout(20):
        while (answer := await gateway.http.post("/v1/jobs", json=document(queue="fast"))).status_code == 503:
            assert answer.json()["upstream"] == "admission"
    assert answer.status_code == 201


class Folding:
    """The handler alone, with the log under the test's hand."""

    def __init__(self, gateway: Gateway) -> None:
        parts = gateway.service.parts
        self.gateway = gateway
        self.handlers = ReadModelHandlers(Directory(parts.upstreams, monotonic=parts.monotonic))
        self.log = Feed(gateway.runtime.store(TABLES, "gateway"), self.handlers.job_events, "yard/admission")

    async def tables(self) -> list[Any]:
        async with self.gateway.runtime.engine.connect() as connection:
            jobs = (await connection.execute(text("SELECT * FROM gateway.jobs ORDER BY seq"))).all()
            events = (await connection.execute(text("SELECT * FROM gateway.events ORDER BY seq"))).all()
        return [tuple(row) for row in (*jobs, *events)]


async def test_inv_8_facts_told_again_from_any_offset_change_nothing(gateway: Gateway) -> None:
    folding = Folding(gateway)
    ended, running = await gateway.submit(), await gateway.submit()
    for job in (ended, running):
        await folding.log.send(fact("queued", job), fact("starting", job), fact("running", job))
    await folding.log.send(
        fact("queued", ended, attempt=2, reason="retry"),
        fact("starting", ended, attempt=2),
        fact("succeeded", ended, attempt=2),
    )
    before = await folding.tables()
    records = folding.log.records

    for first in range(len(records)):
        await folding.log.deliver(records[first:])
    for record in records:
        await folding.log.deliver([record])
    assert await folding.tables() == before


async def test_inv_8_an_event_told_again_at_a_later_offset_changes_nothing(gateway: Gateway) -> None:
    folding = Folding(gateway)
    job = await gateway.submit()
    await folding.log.send(fact("queued", job), fact("starting", job), fact("running", job))
    before = await folding.tables()
    for index, record in enumerate(folding.log.records):
        await folding.log.deliver([replace(record, offset=1000 + index)])
    assert await folding.tables() == before


async def test_facts_told_again_after_their_events_were_forgotten_change_nothing(gateway: Gateway) -> None:
    folding = Folding(gateway)
    job = await gateway.submit()
    await folding.log.send(fact("queued", job), fact("starting", job), fact("running", job))
    async with gateway.runtime.engine.begin() as connection:
        await connection.execute(text("DELETE FROM gateway.events"))
    before = await folding.tables()

    await folding.log.deliver(folding.log.records)
    assert await folding.tables() == before


async def test_facts_of_an_earlier_attempt_and_after_the_end_are_no_news(gateway: Gateway) -> None:
    folding = Folding(gateway)
    job = await gateway.submit()
    await folding.log.send(fact("queued", job, attempt=2), fact("running", job, attempt=1))
    assert (await gateway.http.get(f"/v1/jobs/{job}")).json()["state"] == "queued"

    await folding.log.send(fact("cancelled", job, attempt=2), fact("running", job, attempt=2))
    assert (await gateway.http.get(f"/v1/jobs/{job}")).json()["state"] == "cancelled"
    events = (await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]
    assert [event["data"]["state"] for event in events] == ["queued", "cancelled"]


async def test_one_batch_of_many_jobs(gateway: Gateway) -> None:
    """Starting, running and ended jobs together: their changed columns differ."""
    folding = Folding(gateway)
    jobs = [await gateway.submit() for _ in range(4)]
    starting = fact("starting", jobs[2])
    assert isinstance(starting, JobStarting)
    failed = fact("failed", jobs[3], reason="signal").model_copy(
        update={"tasks": [TaskEnd(task_rank=0, outcome="failed", reason="signal", signal=9, detail="a\0b")]}
    )
    await folding.log.send(
        *(fact("queued", job) for job in jobs), fact("starting", jobs[1]), fact("running", jobs[1]), starting, failed
    )

    shown = [(await gateway.http.get(f"/v1/jobs/{job}")).json() for job in jobs]
    assert [job["state"] for job in shown] == ["queued", "running", "starting", "failed"]
    assert shown[3]["task_ends"][0]["signal"] == 9


async def test_text_that_postgresql_cannot_hold_does_not_park_a_job(gateway: Gateway) -> None:
    folding = Folding(gateway)
    job = await gateway.submit()
    await folding.log.send(fact("queued", job, detail="exec: a\0b"))

    assert (await gateway.http.get(f"/v1/jobs/{job}")).json()["detail"] == "exec: a\ufffdb"
    [event] = (await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]
    assert event["data"]["detail"] == "exec: a\0b"


async def test_a_fact_of_an_unknown_job_is_ignored(gateway: Gateway) -> None:
    folding = Folding(gateway)
    before = await folding.tables()
    await folding.log.send(fact("queued", "job-00000000000000000000000000"))

    assert await folding.tables() == before
