"""The trace of a job begins with the HTTP request that submits it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from support.gateway import Gateway, document, event_stream, running_gateway
from support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from support.telemetry import configured
from support.traces import REQUEST, span_id, trace_id
from yard_events.registry import JOBS_REQUESTS
from yard_obs.catalogue import HTTP_SERVER_DURATION, check_span, prometheus_name
from yard_obs.telemetry import Telemetry
from yard_runtime.service import Runtime

SUBMIT = "POST /v1/jobs"
SEND = f"send {JOBS_REQUESTS}"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture
def telemetry(receiver: OtlpReceiver) -> Iterator[Telemetry]:
    with configured("gateway", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http, OTEL_METRICS_EXPORTER="none") as running:
        yield running


@pytest.fixture
async def gateway(runtime: Runtime, telemetry: Telemetry) -> AsyncIterator[Gateway]:
    async with running_gateway(replace(runtime, metrics=telemetry.metrics)) as running:
        yield running


def _of_job(receiver: OtlpReceiver, name: str, job_id: str) -> list[ReceivedSpan]:
    return [found for found in receiver.named(name) if found.attributes.get("yard.job.id") == job_id]


async def test_a_submission_continues_its_caller_s_trace(gateway: Gateway, receiver: OtlpReceiver) -> None:
    answer = await gateway.http.post("/v1/jobs", json=document(), headers=REQUEST)
    job_id = answer.json()["id"]
    await receiver.until(lambda it: bool(_of_job(it, SEND, job_id)) and bool(_of_job(it, SUBMIT, job_id)))

    [request] = _of_job(receiver, SUBMIT, job_id)
    [sent] = _of_job(receiver, SEND, job_id)
    assert (request.trace_id, request.parent_id) == (trace_id(REQUEST), span_id(REQUEST))
    assert (sent.trace_id, sent.parent_id) == (request.trace_id, request.span_id)
    assert (request.kind, sent.kind) == ("server", "producer")
    assert request.start_ns <= sent.start_ns <= sent.end_ns <= request.end_ns
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/jobs",
        "http.response.status_code": 201,
        "url.path": "/v1/jobs",
        "yard.job.id": job_id,
    }
    for found in receiver.of_trace(request.trace_id):
        check_span(found.name, found.kind, found.attributes)  # and so no library has added spans of its own
        assert found.service == "gpuyard-gateway"


async def test_submissions_that_share_a_transaction_keep_their_own_traces(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    async with asyncio.TaskGroup() as group:
        submitting = [group.create_task(gateway.submit(name=f"job-{number}")) for number in range(20)]
    jobs = {task.result() for task in submitting}
    await receiver.until(lambda it: len(it.named(SEND)) == len(it.named(SUBMIT)) == 20)

    requests = {found.span_id: found for found in receiver.named(SUBMIT)}
    assert len({found.trace_id for found in requests.values()}) == 20
    for sent in receiver.named(SEND):
        parent = requests[sent.parent_id]
        assert sent.trace_id == parent.trace_id
        assert sent.attributes["yard.job.id"] == parent.attributes["yard.job.id"]
    assert {found.attributes["yard.job.id"] for found in receiver.named(SEND)} == jobs


async def test_a_cancellation_has_a_trace_of_its_own(gateway: Gateway, receiver: OtlpReceiver) -> None:
    job_id = await gateway.submit()
    assert (await gateway.http.delete(f"/v1/jobs/{job_id}")).status_code == 202
    cancel = "DELETE /v1/jobs/{job_id}"
    await receiver.until(lambda it: bool(it.named(cancel)) and len(_of_job(it, SEND, job_id)) == 2)

    [request] = _of_job(receiver, cancel, job_id)
    [sent] = [found for found in _of_job(receiver, SEND, job_id) if found.parent_id == request.span_id]
    assert sent.trace_id == request.trace_id
    assert request.parent_id == ""


async def test_a_question_to_an_owner_is_part_of_the_request(gateway: Gateway, receiver: OtlpReceiver) -> None:
    assert (await gateway.http.get("/v1/nodes", headers=REQUEST)).status_code == 200
    await gateway.owners_server.stop()
    assert (await gateway.http.get("/v1/queues")).status_code == 503
    await receiver.until(lambda it: bool(it.named("GET /v1/queues")))

    [request] = receiver.named("GET /v1/nodes")
    asked = [found for found in receiver.spans if found.kind == "client" and found.parent_id == request.span_id]
    assert [found.attributes["server.address"] for found in asked] == ["inventory", "placement"]
    assert {found.trace_id for found in asked} == {trace_id(REQUEST)}
    [failed] = receiver.named("GET /v1/queues")
    [unanswered] = [found for found in receiver.spans if found.parent_id == failed.span_id]
    assert (failed.failed, unanswered.failed) == (True, True)
    for found in [request, failed, unanswered, *asked]:
        check_span(found.name, found.kind, found.attributes)


async def test_an_open_stream_holds_no_span(gateway: Gateway, receiver: OtlpReceiver, telemetry: Telemetry) -> None:
    async with event_stream(gateway.http) as events:
        await events.comment("connected")
        await receiver.until(lambda it: bool(it.named("GET /v1/events")))
        measured = telemetry.prometheus()[0].decode()
    [found] = receiver.named("GET /v1/events")
    assert found.attributes["http.response.status_code"] == 200
    counted = [
        line for line in measured.splitlines() if line.startswith(f"{prometheus_name(HTTP_SERVER_DURATION)}_count")
    ]
    assert any('http_route="/v1/events"' in line and line.endswith(" 1.0") for line in counted)


async def test_a_token_in_a_query_is_not_recorded(gateway: Gateway, receiver: OtlpReceiver) -> None:
    await gateway.http.get("/v1/jobs", params={"name": "secret-name"})
    await receiver.until(lambda it: bool(it.named("GET /v1/jobs")))
    assert "secret-name" not in repr(receiver.spans)
