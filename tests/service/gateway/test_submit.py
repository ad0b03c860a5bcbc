"""POST /v1/jobs: what is accepted, what is sent on, and that an accepted job can be read."""

import asyncio
import hashlib

from sqlalchemy import text

from support.gateway import Gateway, document, fields_of, running_gateway
from support.log import events_of
from yard_events.job_document import JobDocument
from yard_events.registry import JOBS_REQUESTS
from yard_events.types import SubmitJob
from yard_gateway.submissions import Submission, SubmitBatcher
from yard_gateway.tables import TABLES
from yard_runtime.service import Runtime


async def test_a_job_is_stored_sent_and_readable_at_once(gateway: Gateway) -> None:
    given = document(tasks={"gpus": 2, "memory": "1GiB"}, limits={"max_run_time": "1h"}, labels={"team": "nlp"})
    answer = await gateway.http.post("/v1/jobs", json=given)

    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["state"] == "submitted"
    assert job["submitted_by"] == "admin"
    assert job["tasks"] == {"count": 1, "gpus": 2, "gpu_models": [], "cpus": None, "memory": 2**30}
    assert job["spec"]["limits"] == {"max_run_time": 3600.0}
    assert (await gateway.http.get(f"/v1/jobs/{job['id']}")).json() == job

    [sent] = await events_of(gateway.runtime, JOBS_REQUESTS)
    assert isinstance(sent, SubmitJob)
    assert (sent.job_id, sent.project_id, sent.submitted_by) == (job["id"], "default", "admin")
    assert sent.spec.tasks.gpus == 2
    assert sent.spec.to_json_dict() == job["spec"]


async def test_yaml_and_json_of_one_document_are_the_same_job(gateway: Gateway) -> None:
    key = {"idempotency-key": "k"}
    first = await gateway.http.post("/v1/jobs", json=document(labels={"a": "1", "b": "2"}), headers=key)
    body = "run: {command: ['true']}\nlabels: {b: '2', a: '1'}\nname: train\n"
    second = await gateway.http.post("/v1/jobs", content=body, headers=key | {"content-type": "application/yaml"})

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]


async def test_one_key_and_another_document_is_a_conflict(gateway: Gateway) -> None:
    key = {"idempotency-key": "k"}
    assert (await gateway.http.post("/v1/jobs", json=document("one"), headers=key)).status_code == 201
    answer = await gateway.http.post("/v1/jobs", json=document("two"), headers=key)

    assert answer.status_code == 409
    assert fields_of(answer) == ["Idempotency-Key"]
    assert len(await events_of(gateway.runtime, JOBS_REQUESTS)) == 1


async def test_a_key_belongs_to_its_caller(gateway: Gateway) -> None:
    other = await gateway.caller("ci", "submitter", "default")
    key = {"idempotency-key": "k"}
    answers = [await client.post("/v1/jobs", json=document(), headers=key) for client in (gateway.http, other)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["id"] != answers[1].json()["id"]


async def test_fifty_identical_submissions_at_once_are_one_job(gateway: Gateway) -> None:
    key = {"idempotency-key": "same"}
    answers = await asyncio.gather(*(gateway.http.post("/v1/jobs", json=document(), headers=key) for _ in range(50)))

    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(await events_of(gateway.runtime, JOBS_REQUESTS)) == 1


async def test_fifty_submissions_over_two_gateways_are_one_job(gateway: Gateway, second_runtime: Runtime) -> None:
    """Two processes: only the database can tell that the key is taken."""
    ours = gateway.service.parts.batcher
    async with asyncio.TaskGroup() as group:
        theirs = SubmitBatcher(second_runtime.store(TABLES, "gateway"), batch_limit=8, queue_limit=100)
        worker = group.create_task(theirs.run())
        parsed = JobDocument.model_validate(document())
        submission = Submission(parsed, parsed.model_dump_json(exclude_none=True).encode(), "admin", "same")
        accepted = await asyncio.gather(*(batcher.submit(submission) for batcher in (ours, theirs) * 25))
        worker.cancel()

    assert len({item.job_id for item in accepted}) == 1
    assert sum(item.created for item in accepted) == 1


async def test_concurrent_submissions_share_transactions(gateway: Gateway) -> None:
    await gateway.submit()
    before = await _transactions_with_jobs(gateway)
    answers = await asyncio.gather(*(gateway.http.post("/v1/jobs", json=document()) for _ in range(60)))

    assert [answer.status_code for answer in answers] == [201] * 60
    assert len({answer.json()["id"] for answer in answers}) == 60
    assert await _transactions_with_jobs(gateway) - before < 30


async def _transactions_with_jobs(gateway: Gateway) -> int:
    """xmin tells which transaction wrote a row."""
    async with gateway.runtime.engine.connect() as connection:
        return int(await connection.scalar(text("SELECT count(DISTINCT xmin::text) FROM gateway.jobs")) or 0)


async def test_an_unknown_queue_names_the_known_ones(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/jobs", json=document(queue="fast"))

    assert answer.status_code == 422
    assert fields_of(answer) == ["queue"]
    assert "known: default" in answer.text
    assert await events_of(gateway.runtime, JOBS_REQUESTS) == []


async def test_an_unknown_project_is_refused(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/jobs", json=document(project="nobody"))

    assert answer.status_code == 422
    assert fields_of(answer) == ["project"]


async def test_a_queue_and_a_project_just_made_can_be_used(gateway: Gateway) -> None:
    assert (await gateway.http.post("/v1/jobs", json=document(queue="fast"))).status_code == 422
    assert (await gateway.http.put("/v1/queues/fast", json={"gpu_quota": 4})).status_code == 200
    assert (await gateway.http.put("/v1/projects/speech", json={})).status_code == 200

    answer = await gateway.http.post("/v1/jobs", json=document(queue="fast", project="speech"))
    assert answer.status_code == 201, answer.text


async def test_a_known_queue_needs_no_answer_of_admission(gateway: Gateway) -> None:
    await gateway.submit()
    await gateway.owners_server.stop()

    assert (await gateway.http.post("/v1/jobs", json=document())).status_code == 201
    answer = await gateway.http.post("/v1/jobs", json=document(queue="fast"))
    assert answer.status_code == 503
    assert answer.json()["upstream"] == "admission"
    assert answer.headers["retry-after"]


async def test_more_than_may_wait_are_told_to_come_back(runtime: Runtime) -> None:
    async with running_gateway(runtime, submit_queue=1, submit_batch=1) as gateway:
        answers = await asyncio.gather(*(gateway.http.post("/v1/jobs", json=document()) for _ in range(20)))

        codes = {answer.status_code for answer in answers}
        assert codes == {201, 503}
        accepted = [answer.json()["id"] for answer in answers if answer.status_code == 201]
        sent = [event for event in await events_of(runtime, JOBS_REQUESTS) if isinstance(event, SubmitJob)]
        assert sorted(event.job_id for event in sent) == sorted(accepted)


async def test_only_digests_of_tokens_are_stored(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/tokens", json={"name": "ci", "role": "viewer", "projects": ["default"]})
    token = answer.json()["token"]
    async with gateway.runtime.engine.connect() as connection:
        rows = (await connection.execute(text("SELECT t::text AS row, digest FROM gateway.tokens t"))).all()

    assert not any(token in row.row for row in rows)
    assert hashlib.sha256(token.encode()).hexdigest() in {row.digest for row in rows}
