"""The last stretch of a trace: from a command to the process, and from there to what the node tells."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from support.agent_node import AgentNodes
from support.traces import CANCELLATION, REQUEST, Spans, of_job, span_id
from yard_agent.task_traces import RUN_TASK, START_TASK
from yard_events.base import EventModel
from yard_events.registry import NODES_EVENTS
from yard_events.types import DevicesEmptied, NodeRegistered, NodeReport, TaskExited, TaskReady
from yard_obs.catalogue import OUTCOME

TOLD = f"send {NODES_EVENTS}"
COMMAND = span_id(REQUEST)
SAY_TRACE = ("sh", "-c", "echo $TRACEPARENT $TRACESTATE")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans.recorded(monkeypatch)


def given(nodes: AgentNodes, allocation_id: str = "a") -> dict[str, str]:
    """The trace context that a task which ran SAY_TRACE found in its environment."""
    parent, _, state = nodes.output(allocation_id).decode().strip().partition(" ")
    return {"traceparent": parent, "tracestate": state}


def context_of(span: ReadableSpan) -> Mapping[str, str]:
    assert span.context is not None
    return {"traceparent": f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"}


def headers(nodes: AgentNodes, fact: EventModel) -> dict[str, str]:
    return nodes.envelope_of(fact).extra


async def test_the_process_continues_the_trace_of_its_command(nodes: AgentNodes, spans: Spans) -> None:
    async with nodes.running():
        await nodes.start("a", *SAY_TRACE, trace=REQUEST)
        exited = await nodes.ended("a")
        started = await nodes.started("a")
        emptied = await nodes.fact(DevicesEmptied, "a")
    assert spans.path(given(nodes)) == [START_TASK, COMMAND]
    assert given(nodes)["tracestate"] == "vendor=1"
    for fact in (started, exited, emptied):
        assert spans.path(headers(nodes, fact)) == [TOLD, START_TASK, COMMAND]
        assert nodes.envelope_of(fact).correlation_id == "request"
    run = spans.one(RUN_TASK)
    assert spans.path(context_of(run)) == [RUN_TASK, START_TASK, COMMAND]
    assert (run.status.status_code, (run.attributes or {})[OUTCOME]) == (StatusCode.UNSET, "succeeded")
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.start_time / 1e9 == pytest.approx(started.observed_at.timestamp(), abs=1e-3)
    assert run.end_time / 1e9 == pytest.approx(exited.observed_at.timestamp(), abs=1e-3)
    assert {of_job(span) for span in spans.all()} == {"job-1"}


async def test_a_gang_from_prepare_to_start(nodes: AgentNodes, spans: Spans) -> None:
    async with nodes.running():
        await nodes.prepare("a", *SAY_TRACE, trace=CANCELLATION)
        ready = await nodes.fact(TaskReady, "a")
        await nodes.start("a", *SAY_TRACE, seq=2, trace=REQUEST)
        await nodes.ended("a")
    assert spans.path(headers(nodes, ready)) == [TOLD, span_id(CANCELLATION)]
    assert spans.path(given(nodes)) == [START_TASK, COMMAND]


async def test_an_agent_that_dies_between_command_and_start(
    nodes: AgentNodes, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is in the journal, with its trace; the next agent starts the task."""
    with monkeypatch.context() as patch:
        patch.setattr("yard_agent.task_control.TaskControl.want", lambda _control, _ids: None)
        async with nodes.running():
            await nodes.start("a", *SAY_TRACE, trace=REQUEST)
            await nodes.until(
                lambda: any(
                    (known.allocation_id, known.state) == ("a", "starting")
                    for report in nodes.told
                    if isinstance(report, NodeReport)
                    for known in report.allocations
                )
            )
    assert nodes.kinds("a") == []
    async with nodes.running():
        exited = await nodes.ended("a")
    assert spans.path(given(nodes)) == [START_TASK, COMMAND]
    assert spans.path(headers(nodes, exited)) == [TOLD, START_TASK, COMMAND]


async def test_a_task_outlives_its_agent_and_its_run_is_one_span(
    nodes: AgentNodes, spans: Spans, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with nodes.running():
        wait = f"echo $TRACEPARENT; while [ ! -e {gate} ]; do sleep 0.02; done; exit 3"
        await nodes.start("a", "sh", "-c", wait, trace=REQUEST)
        started = await nodes.started("a")
    gate.touch()
    async with nodes.running():
        exited = await nodes.ended("a")
    assert spans.path(headers(nodes, exited)) == [TOLD, START_TASK, COMMAND]
    assert spans.path(given(nodes)) == [START_TASK, COMMAND]
    run = spans.one(RUN_TASK)
    assert spans.path(context_of(run)) == [RUN_TASK, START_TASK, COMMAND]
    assert run.start_time is not None
    assert run.start_time / 1e9 == pytest.approx(started.observed_at.timestamp(), abs=1e-3)
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "exit_code")


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({"TRACEPARENT": CANCELLATION["traceparent"]}, f"{CANCELLATION['traceparent']}\n"),
        ({"TRACEPARENT": "mine", "TRACESTATE": "a=1"}, "mine a=1\n"),
        ({"TRACEPARENT": ""}, "\n"),
    ],
)
async def test_a_job_that_says_its_trace_keeps_it(
    nodes: AgentNodes, spans: Spans, own: dict[str, str], found: str
) -> None:
    async with nodes.running():
        await nodes.start("a", *SAY_TRACE, env=own, trace=REQUEST)
        exited = await nodes.ended("a")
    assert nodes.output("a").decode() == found
    assert spans.path(headers(nodes, exited)) == [TOLD, START_TASK, COMMAND]


async def test_a_task_that_cannot_start(nodes: AgentNodes, spans: Spans) -> None:
    async with nodes.running():
        await nodes.start("a", "/no/such/program", trace=REQUEST)
        exited = await nodes.ended("a")
    assert spans.path(headers(nodes, exited)) == [TOLD, START_TASK, COMMAND]
    assert spans.named(RUN_TASK) == []


async def test_a_stop_that_overtakes_its_start(nodes: AgentNodes, spans: Spans) -> None:
    async with nodes.running():
        await nodes.stop("a", trace=CANCELLATION)
        exited = await nodes.fact(TaskExited, "a")
    assert spans.path(headers(nodes, exited)) == [TOLD, span_id(CANCELLATION)]


async def test_without_telemetry_the_process_gets_what_the_command_carried(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", *SAY_TRACE, trace=REQUEST)
        await nodes.start("b", "env")
        exited = await nodes.ended("a")
        await nodes.ended("b")
    assert given(nodes) == REQUEST
    assert "TRACE" not in nodes.output("b").decode()
    assert headers(nodes, exited) == REQUEST


async def test_what_a_node_says_of_itself_is_in_no_trace(nodes: AgentNodes, spans: Spans) -> None:
    async with nodes.running():
        report = await nodes.report()
        registration = next(event for event in nodes.told if isinstance(event, NodeRegistered))
    assert (headers(nodes, report), headers(nodes, registration)) == ({}, {})
    assert spans.all() == ()
