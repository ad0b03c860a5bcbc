"""Trace context of events: made when an event is made, carried in its headers, taken up where it is handled.

Only OpenTelemetry's API stands here: without an SDK (no OTLP endpoint configured) spans cost nothing and a caller's own
`traceparent` still travels from the HTTP request to the task. Conventions: OpenTelemetry messaging, 1.44.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER: trace.Tracer = trace.NoOpTracer()

TraceHeaders = Mapping[str, str]
"""`traceparent` and perhaps `tracestate`, as in W3C Trace Context; empty without a trace."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ACTING: ContextVar[str | None] = ContextVar("yard_acting_service", default=None)


@contextmanager
def acting_as(service: str) -> Generator[None]:
    """Spans that begin inside, and in tasks that are made inside, are this service's: a process may run several."""
    token = _ACTING.set(service)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_service() -> str | None:
    """None where the process acts for itself."""
    return _ACTING.get()


def record_with(provider: trace.TracerProvider | None) -> None:
    """Spans go there from now on; with None nowhere.

    It does not become OpenTelemetry's global provider: there libraries find it (FastAPI does) and add several spans of
    their own to each of ours, with query strings in them. What we record is what our catalogue has.
    """
    global _TRACER  # noqa: PLW0603 - a process has one, or every function that ever emits would have to be handed it
    tracer = provider.get_tracer("gpuyard") if provider is not None else trace.NoOpTracer()
    _TRACER = tracer  # pyright: ignore[reportConstantRedefinition]


def recording() -> bool:
    """Whether spans go anywhere. Without it, what only spans need can be left out."""
    return not isinstance(_TRACER, trace.NoOpTracer)


def carried_trace(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The trace context among a record's headers, fit to be stored and passed on; None without one, or for nonsense."""
    parent = headers.get("traceparent")
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return None
    state = headers.get("tracestate")
    return {"traceparent": parent} | ({"tracestate": state} if state and _TRACESTATE.fullmatch(state) else {})


def current_trace() -> dict[str, str]:
    """The headers of the span that is current here; empty without one."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers)
    return headers


def context_of(headers: TraceHeaders) -> Context:
    """The remote context that headers carry; an empty one when they carry none."""
    return _PROPAGATOR.extract(headers, Context())


def link_to(headers: TraceHeaders) -> Link | None:
    """A link to the span that headers name; None when they name none."""
    context = trace.get_current_span(context_of(headers)).get_span_context()
    return Link(context) if context.is_valid else None


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: TraceHeaders | None = None,
    links: tuple[Link, ...] = (),
    attributes: Mapping[str, str | int] | None = None,
    root: bool = False,
) -> Generator[Span]:
    """A current span: child of `parent` when that names one, else of the span that is current; `root`: of none."""
    context = Context() if root else context_of(parent) if parent and "traceparent" in parent else None
    with _TRACER.start_as_current_span(
        name, context=context, kind=kind, links=links, attributes=dict(attributes or {})
    ) as started:
        yield started


def open_span(
    name: str, *, kind: SpanKind, parent: TraceHeaders | None, attributes: Mapping[str, str | int] | None = None
) -> Span:
    """A span that the caller ends; it is current only in `current(span)`. Child of `parent`, else a root."""
    return _TRACER.start_span(name, context=context_of(parent or {}), kind=kind, attributes=dict(attributes or {}))


def current(opened: Span) -> AbstractContextManager[Span]:
    """Make it the current span inside; it is not ended, and an exception says nothing about it."""
    return trace.use_span(opened, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def annotate(attributes: Mapping[str, str | int]) -> None:
    """Say more about the span that is current here, if any is recorded."""
    here = trace.get_current_span()
    if here.is_recording():
        here.set_attributes(attributes)


def past_span(
    name: str,
    *,
    start: datetime,
    end: datetime,
    parent: TraceHeaders,
    attributes: Mapping[str, str | int] | None = None,
    failure: str | None = None,
) -> None:
    """Record what took from `start` to `end` and is over: nothing has to be held, or remembered, meanwhile.

    `failure` says why it went wrong. The span is a child of `parent`.
    """
    over = _TRACER.start_span(
        name, context=context_of(parent), attributes=dict(attributes or {}), start_time=_nanoseconds(start)
    )
    if failure is not None:
        over.set_status(Status(StatusCode.ERROR, failure))
    over.end(_nanoseconds(max(start, end)))


def _nanoseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND * 1000


def sent(topic: str, attributes: Mapping[str, str | int], parent: TraceHeaders | None) -> dict[str, str]:
    """Record that a message for `topic` was made (span `send T`); returns the headers that the message carries.

    Without a recording SDK the parent's own headers are passed on.
    """
    if not recording():
        # Every event of the pipeline comes through here: no telemetry must cost next to nothing.
        return (carried_trace(parent) if parent else None) or current_trace()
    context = context_of(parent) if parent and "traceparent" in parent else None
    opened = _TRACER.start_span(f"send {topic}", context=context, kind=SpanKind.PRODUCER, attributes=dict(attributes))
    opened.end()  # never current: nothing happens inside, and making it so is a third of the cost
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, trace.set_span_in_context(opened, Context()))
    return headers
