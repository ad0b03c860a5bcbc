"""From a request to the process that it led to, through all services in between: one trace for each attempt."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from support.agent_node import WITHIN_SECONDS, AgentNodes
from support.traces import REQUEST, Spans, linked, of_job, span_id, trace_id
from yard_admission import app as admission
from yard_admission.settings import AdmissionSettings
from yard_events.base import wrap
from yard_events.job_document import JobDocument
from yard_events.types import DevicesEmptied, SubmitJob
from yard_inventory import app as inventory
from yard_inventory.settings import InventorySettings
from yard_placement import app as placement
from yard_placement.settings import PlacementSettings
from yard_runtime.service import Runtime, Service

JOB = "job-1"
UP_TO_THE_PLACING = ["start task", "send yard.nodes.commands.v1", "send yard.placement.requests.v1"]


@asynccontextmanager
async def serving(services: Sequence[Service]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in services]
        running = [group.create_task(s.run(r.set)) for s, r in zip(services, ready, strict=True)]
        for event in ready:
            await event.wait()
        yield
        for task in running:
            task.cancel()


def found_trace(nodes: AgentNodes, attempt: int) -> dict[str, str]:
    return {"traceparent": nodes.output(f"{JOB}-a{attempt}.t0").decode().strip()}


async def test_each_attempt_is_one_trace_and_the_second_is_linked(
    nodes: AgentNodes, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans.recorded(monkeypatch)
    services = [
        await admission.build(AdmissionSettings(), runtime),
        await placement.build(PlacementSettings(), runtime),
        await inventory.build(InventorySettings(), runtime),
    ]
    fails_once = "echo $TRACEPARENT; test $YARD_ATTEMPT = 2"
    mark, value = nodes.mark.split("=")
    document = {
        "name": "a",
        "run": {"command": ["sh", "-c", fails_once], "env": {mark: value}},
        "retry": {"max_attempts": 2},
    }
    now = runtime.clock.now()
    submit = SubmitJob(
        job_id=JOB,
        project_id="default",
        spec=JobDocument.model_validate(document),
        submitted_by="ann",
        submitted_at=now,
    )
    async with asyncio.timeout(WITHIN_SECONDS), serving(services), nodes.running():
        await runtime.bus.publish([wrap(submit, event_id="request", source="tests", time=now, trace=REQUEST)])
        for attempt in (1, 2):
            await nodes.fact(DevicesEmptied, f"{JOB}-a{attempt}.t0")

    first, second = found_trace(nodes, 1), found_trace(nodes, 2)
    assert spans.path(first) == [*UP_TO_THE_PLACING, span_id(REQUEST)]
    assert spans.path(second) == [*UP_TO_THE_PLACING, "attempt 2"]
    assert span_id(REQUEST) in linked(spans.one("attempt 2"))
    assert trace_id(first) != trace_id(second)
    traces = {f"{span.context.trace_id:032x}" for span in spans.all() if span.context and of_job(span) == JOB}
    assert traces == {trace_id(first), trace_id(second)}
    about_tasks = [e for e in nodes.envelopes if e.correlation_id is not None]
    assert {e.correlation_id for e in about_tasks} == {"request"}
