"""Decisions and commands of the cycle are in the trace of the request to place the attempt."""

from typing import Any

import pytest

from support.admission import log_of
from support.placement import PoolDesk
from support.traces import CANCELLATION, REQUEST, Spans, of_job, span_id
from yard_bus.consumer import Received
from yard_events import registry, types
from yard_events.envelope import Envelope

DECIDED = f"send {registry.PLACEMENT_DECISIONS}"
COMMANDED = f"send {registry.NODES_COMMANDS}"
PLACED, CANCELLED = span_id(REQUEST), span_id(CANCELLATION)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans.recorded(monkeypatch)


async def said(desk: PoolDesk, *kinds: type[Any]) -> list[Envelope]:
    """The events of these kinds, as they travelled."""
    topics = (registry.PLACEMENT_DECISIONS, registry.NODES_COMMANDS)
    found: list[Received] = [r for topic in topics for r in await log_of(desk.runtime, topic)]
    return [received.envelope for received in found if isinstance(received.data, kinds)]


async def conversation(desk: PoolDesk) -> str:
    return (await log_of(desk.runtime, registry.PLACEMENT_REQUESTS))[0].envelope.id


async def test_a_task_from_the_request_to_its_release(desk: PoolDesk, spans: Spans) -> None:
    await desk.node()
    await desk.place("a", trace=REQUEST)
    await desk.over("a")
    everything = [
        types.AttemptGranted,
        types.AttemptStarted,
        types.AttemptExited,
        types.AllocationReleased,
        types.StartTask,
    ]
    told = await said(desk, *everything)
    assert [envelope.type for envelope in told] == [kind.TYPE for kind in everything]
    assert [spans.path(e.extra) for e in told] == [[DECIDED, PLACED]] * 4 + [[COMMANDED, PLACED]]
    assert {e.correlation_id for e in told} == {await conversation(desk)}
    assert {of_job(span) for span in spans.named(DECIDED) + spans.named(COMMANDED)} == {"job-a"}


async def test_a_gang_that_waits_and_is_placed_by_another_process(desk: PoolDesk, spans: Spans) -> None:
    await desk.place("a", count=2, trace=REQUEST)
    other = await desk.reopened()
    await other.node()
    await other.ready("a", 0, 1)
    told = await said(other, types.AttemptBlocked, types.AttemptGranted, types.PrepareTask, types.StartTask)
    assert [spans.path(e.extra)[-1] for e in told] == [PLACED] * len(told)
    assert {e.type for e in told} == {
        kind.TYPE for kind in (types.AttemptBlocked, types.AttemptGranted, types.PrepareTask, types.StartTask)
    }


async def test_a_stop_is_in_the_trace_of_who_asked_for_it(desk: PoolDesk, spans: Spans) -> None:
    await desk.node()
    await desk.place("a", trace=REQUEST)
    await desk.started("a")
    await desk.stop("a", trace=CANCELLATION)
    [stop] = await said(desk, types.StopTask)
    assert spans.path(stop.extra) == [COMMANDED, CANCELLED]
    assert stop.correlation_id == await conversation(desk)
    await desk.exited("a", outcome="stopped", reason="signal")
    [end] = await said(desk, types.AttemptExited)
    assert spans.path(end.extra) == [DECIDED, PLACED]


async def test_a_stop_that_nobody_asked_for_is_in_the_attempts_own(desk: PoolDesk, spans: Spans) -> None:
    await desk.node()
    await desk.place("a", count=2, trace=REQUEST)
    await desk.ready("a", 0, 1)
    await desk.exited("a", 0, code=1)
    [stop] = await said(desk, types.StopTask)
    assert spans.path(stop.extra) == [COMMANDED, PLACED]


async def test_a_command_sent_again_is_in_the_same_trace_and_names_the_report(desk: PoolDesk, spans: Spans) -> None:
    await desk.node()
    await desk.place("a", trace=REQUEST)
    desk.clock.advance(60)
    await desk.report("n1")
    first, again = await said(desk, types.StartTask)
    assert spans.path(first.extra) == spans.path(again.extra) == [COMMANDED, PLACED]
    assert again.causation_id == (await log_of(desk.runtime, registry.NODES_EVENTS))[-1].envelope.id
    assert again.correlation_id == first.correlation_id


async def test_without_telemetry_the_callers_trace_goes_on(desk: PoolDesk) -> None:
    await desk.node()
    await desk.place("a", trace=REQUEST)
    await desk.place("b")
    assert [start.extra for start in await said(desk, types.StartTask)] == [REQUEST, {}]
