"""Spans as an exporter gets them, and how they hang together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from yard_obs import tracing
from yard_obs.catalogue import JOB_ID, check_span

REQUEST = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
"""The context of somebody's HTTP request, whose span is not ours."""
CANCELLATION = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}


def trace_id(headers: Mapping[str, str]) -> str:
    return headers["traceparent"].split("-")[1]


def span_id(headers: Mapping[str, str]) -> str:
    return headers["traceparent"].split("-")[2]


@dataclass
class Spans:
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    @classmethod
    def recorded(cls, patch: pytest.MonkeyPatch) -> "Spans":
        """From now on, as in a process that exports; OpenTelemetry itself allows that once per process."""
        spans = cls()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        patch.setattr(tracing, "_TRACER", provider.get_tracer("gpuyard"))
        return spans

    def all(self) -> Sequence[ReadableSpan]:
        """All so far; each of them is in the catalogue."""
        spans = self.exporter.get_finished_spans()
        for span in spans:
            check_span(span.name, span.kind.name.lower(), span.attributes or {})
        return spans

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def path(self, headers: Mapping[str, str]) -> list[str]:
        """The names from the span that these headers carry up to its root; the last is an id if that is not ours."""
        by_id = {format(span.context.span_id, "016x"): span for span in self.all() if span.context is not None}
        names: list[str] = []
        at: str | None = span_id(headers)
        while at is not None:
            span = by_id.get(at)
            if span is None:
                return [*names, at]
            assert span.context is not None
            assert format(span.context.trace_id, "032x") == trace_id(headers)
            names.append(span.name)
            at = format(span.parent.span_id, "016x") if span.parent is not None else None
        return names


def of_job(span: ReadableSpan) -> object:
    return (span.attributes or {}).get(JOB_ID)


def linked(span: ReadableSpan) -> set[str]:
    """The ids of the spans that it is linked to."""
    return {format(link.context.span_id, "016x") for link in span.links}
