"""Trace context of events: made when an event is made, carried in its headers, taken up where it is handled.

Only OpenTelemetry's API stands here: without an SDK (no OTLP endpoint configured) spans cost nothing and a caller's own
`traceparent` still travels from the HTTP request to the task. Conventions: OpenTelemetry messaging, 1.44.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER = trace.get_tracer("gpuyard")

TraceHeaders = Mapping[str, str]
"""`traceparent` and perhaps `tracestate`, as in W3C Trace Context; empty without a trace."""


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
) -> Generator[Span]:
    """A current span: child of `parent` when that names one, else of the span that is current."""
    context = context_of(parent) if parent and "traceparent" in parent else None
    with _TRACER.start_as_current_span(
        name, context=context, kind=kind, links=links, attributes=dict(attributes or {})
    ) as started:
        yield started


def sent(topic: str, attributes: Mapping[str, str | int], parent: TraceHeaders | None) -> dict[str, str]:
    """Record that a message for `topic` was made (span `send T`); returns the headers that the message carries.

    Without a recording SDK the parent's own headers are passed on.
    """
    with span(f"send {topic}", kind=SpanKind.PRODUCER, parent=parent, attributes=attributes):
        return current_trace()
