"""The trace of a job: what is decided later than its request goes on in it; a later attempt has one of its own."""

from typing import Any

import pytest

from support.admission import Desk, log_of
from support.traces import CANCELLATION, REQUEST, Spans, linked, of_job, span_id, trace_id
from yard_bus.consumer import Received
from yard_events import registry, types
from yard_events.envelope import Envelope
from yard_obs.catalogue import ATTEMPT

REQUESTED = span_id(REQUEST)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans.recorded(monkeypatch)


async def said(desk: Desk, kind: type[Any]) -> list[Envelope]:
    """The events of one kind, as they travelled."""
    topics = (registry.JOBS_EVENTS, registry.PLACEMENT_REQUESTS)
    found: list[Received] = [r for topic in topics for r in await log_of(desk.runtime, topic)]
    return [received.envelope for received in found if isinstance(received.data, kind)]


async def one(desk: Desk, kind: type[Any]) -> Envelope:
    [envelope] = await said(desk, kind)
    return envelope


async def submission_id(desk: Desk) -> str:
    return (await log_of(desk.runtime, registry.JOBS_REQUESTS))[0].envelope.id


async def test_the_cycle_decides_in_the_trace_of_the_request(desk: Desk, spans: Spans) -> None:
    await desk.submit("a", trace=REQUEST)
    for kind, topic in (
        (types.JobQueued, registry.JOBS_EVENTS),
        (types.JobAdmitted, registry.JOBS_EVENTS),
        (types.PlaceAttempt, registry.PLACEMENT_REQUESTS),
    ):
        envelope = await one(desk, kind)
        assert spans.path(envelope.extra) == [f"send {topic}", REQUESTED]
        assert envelope.extra["tracestate"] == "vendor=1"
        assert envelope.correlation_id == await submission_id(desk)
    assert {of_job(span) for span in spans.all()} == {"job-a"}


async def test_also_after_a_wait_and_in_another_process(desk: Desk, spans: Spans) -> None:
    await desk.submit("before", gpus=4, trace=CANCELLATION)
    await desk.submit("a", trace=REQUEST)
    other = await Desk.open(desk.runtime, desk.clock)
    other.read |= desk.read
    await other.exit_after_start("before")
    _, placed = await said(other, types.PlaceAttempt)
    assert spans.path(placed.extra) == ["send yard.placement.requests.v1", REQUESTED]
    assert placed.correlation_id == (await log_of(desk.runtime, registry.JOBS_REQUESTS))[1].envelope.id


async def test_facts_continue_the_decision_that_they_follow_from(desk: Desk, spans: Spans) -> None:
    await desk.submit("a", trace=REQUEST)
    granted = REQUEST | {"traceparent": f"00-{'a' * 32}-{'1' * 16}-01"}
    await desk.decide(types.AttemptGranted, "a", trace=granted)
    starting = await one(desk, types.JobStarting)
    assert spans.path(starting.extra) == [f"send {registry.JOBS_EVENTS}", "1" * 16]
    assert starting.correlation_id == await submission_id(desk)


async def test_a_cancellation_is_in_the_trace_of_who_asked_for_it(desk: Desk, spans: Spans) -> None:
    await desk.submit("a", trace=REQUEST)
    await desk.cancel("a", trace=CANCELLATION)
    for kind in (types.JobCancelling, types.StopAttempt):
        assert spans.path((await one(desk, kind)).extra)[-1] == span_id(CANCELLATION)


async def test_each_later_attempt_is_a_trace_of_its_own_linked_to_the_first(desk: Desk, spans: Spans) -> None:
    await desk.submit("a", attempts=3, trace=REQUEST)
    ends = [{"traceparent": f"00-{'a' * 32}-{n * 16}-01"} for n in "12"]
    for end in ends:
        await desk.start("a")
        await desk.exit("a", "failed", code=1, trace=end)

    places = await said(desk, types.PlaceAttempt)
    traces = [trace_id(place.extra) for place in places]
    assert len(set(traces)) == 3
    assert traces[0] == trace_id(REQUEST)
    assert {place.correlation_id for place in places} == {await submission_id(desk)}
    for number, end in zip((2, 3), ends, strict=True):
        root = spans.one(f"attempt {number}")
        assert (root.parent, of_job(root), (root.attributes or {})[ATTEMPT]) == (None, "job-a", number)
        assert linked(root) == {REQUESTED, span_id(end)}
        assert spans.path(places[number - 1].extra) == ["send yard.placement.requests.v1", f"attempt {number}"]
    facts = [e for e in await said(desk, types.JobFact) if e.type in (types.JobQueued.TYPE, types.JobAdmitted.TYPE)]
    # Queued and admitted, for each attempt in the attempt's own trace.
    assert [trace_id(fact.extra) for fact in facts] == [trace for trace in traces for _ in range(2)]


async def test_a_submission_without_a_trace_begins_one(desk: Desk, spans: Spans) -> None:
    await desk.submit("a")
    assert spans.path((await one(desk, types.JobQueued)).extra) == ["send yard.jobs.events.v1", "attempt 1"]
    assert spans.path((await one(desk, types.PlaceAttempt)).extra) == ["send yard.placement.requests.v1", "attempt 1"]
    assert not spans.one("attempt 1").links


async def test_without_telemetry_the_callers_trace_goes_on_and_none_is_made_up(desk: Desk) -> None:
    await desk.submit("a", attempts=2, trace=REQUEST)
    await desk.submit("b")
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    assert [place.extra for place in await said(desk, types.PlaceAttempt)] == [REQUEST, {}, REQUEST]


async def test_headers_that_are_no_trace_are_not_kept(desk: Desk) -> None:
    await desk.submit("a", trace={"traceparent": "00-nonsense", "tracestate": "x" * 9000})
    await desk.submit("b", trace=REQUEST | {"tracestate": "a=" + "x" * 9000})
    assert [(await desk.job(name))["trace"] for name in "ab"] == [None, {"traceparent": REQUEST["traceparent"]}]
