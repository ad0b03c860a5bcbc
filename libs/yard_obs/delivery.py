"""OTLP exporters that may fail: nothing waits for them, and an outage is one line in the log, with its end another.

Imported only where an endpoint is configured; gRPC, which takes some 10 MiB, only where it is the protocol.
"""

import logging
import os
import re
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import structlog
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from yard_obs.otlp_settings import OtelSettings, Protocol, Target

_log = structlog.get_logger("yard.telemetry")

_OF_DELIVERY = "opentelemetry.exporter"
"""Its loggers repeat themselves for as long as a collector is away."""
_REASON_LIMIT = 300


class LibraryLog(logging.Handler):
    """Takes over what OpenTelemetry logs: of deliveries it keeps the last words, everything else goes to our log."""

    def __init__(self, secrets: frozenset[str]) -> None:
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._last_words = ""
        self._library = logging.getLogger("opentelemetry")
        # It tells of every span that finds the queue full: in an outage that costs more than recording the span.
        self._queue = logging.getLogger("opentelemetry.sdk._shared_internal")

    def attach(self) -> None:
        self._library.addHandler(self)
        self._library.propagate = False
        self._queue.setLevel(logging.CRITICAL)

    def detach(self) -> None:
        self._library.removeHandler(self)
        self._library.propagate = True
        self._queue.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        text = self._without_secrets(record.getMessage())
        if record.name.startswith(_OF_DELIVERY):
            self._last_words = text
        else:
            _log.warning("opentelemetry", logger=record.name, message=text)

    def last_words(self) -> str:
        return self._last_words

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return re.sub(r"\s+", " ", text)[:_REASON_LIMIT]


class Deliveries:
    """Whether the signals arrive. Thread-safe: each signal is exported by a thread of its own."""

    def __init__(self, why: Callable[[], str]) -> None:
        self._why = why
        self._lock = Lock()
        self._failing: set[Target] = set()
        self._lost_spans = 0

    def failed(self, target: Target, spans: int = 0) -> None:
        with self._lock:
            first = not self._failing
            self._failing.add(target)
            self._lost_spans += spans
        if first:
            _log.warning(
                "telemetry is not delivered", collector=target.address, signal=target.signal, error=self._why()
            )

    def delivered(self, target: Target) -> None:
        if not self._failing:
            return
        with self._lock:
            self._failing.discard(target)
            over = not self._failing
            lost = self._lost_spans
            if over:
                self._lost_spans = 0
        if over:
            _log.info("telemetry is delivered again", collector=target.address, lost_spans_at_least=lost)


class Exports:
    """What a process sends: made from its settings, given up when it must end, closed when all is sent."""

    def __init__(self, settings: OtelSettings) -> None:
        self._settings = settings
        self._log = LibraryLog(settings.secrets())
        self._log.attach()
        self._deliveries = Deliveries(self._log.last_words)
        self._exporters: list[SpanExporter | MetricExporter] = []

    def span_processor(self) -> SpanProcessor | None:
        """Queues spans and sends them in batches; None when traces go nowhere."""
        target = self._settings.traces
        if target is None:
            return None
        exporter = span_exporter(target)
        self._exporters.append(exporter)
        return BatchSpanProcessor(
            WatchedSpanExporter(exporter, target, self._deliveries),
            max_queue_size=self._settings.queue_spans,
            schedule_delay_millis=self._settings.span_delay_ms,
            max_export_batch_size=self._settings.batch_spans,
        )

    def metric_reader(self) -> MetricReader | None:
        """Sends all metrics in intervals; None when they go nowhere."""
        target = self._settings.metrics
        if target is None:
            return None
        exporter = metric_exporter(target)
        self._exporters.append(exporter)
        watched = WatchedMetricExporter(exporter, target, self._deliveries)
        return PeriodicExportingMetricReader(watched, self._settings.metric_interval_ms)

    def give_up(self) -> None:
        """Break off what is being tried; what comes after fails at once."""
        for exporter in self._exporters:
            exporter.shutdown()  # pyright: ignore[reportUnknownMemberType]

    def close(self) -> None:
        self._log.detach()


class WatchedSpanExporter(SpanExporter):
    def __init__(self, inner: SpanExporter, target: Target, deliveries: Deliveries) -> None:
        self._inner = inner
        self._target = target
        self._deliveries = deliveries

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._deliveries.delivered(self._target)
        else:
            self._deliveries.failed(self._target, len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class WatchedMetricExporter(MetricExporter):
    def __init__(self, inner: MetricExporter, target: Target, deliveries: Deliveries) -> None:
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)  # pyright: ignore[reportPrivateUsage]
        self._inner = inner
        self._target = target
        self._deliveries = deliveries

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        result = self._inner.export(metrics_data, timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        if result is MetricExportResult.SUCCESS:
            self._deliveries.delivered(self._target)
        else:
            self._deliveries.failed(self._target)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis)  # pyright: ignore[reportUnknownMemberType]


def span_exporter(target: Target) -> SpanExporter:
    """TLS files, compression and the like are read from the environment by the exporters themselves."""
    headers, timeout = dict(target.headers), target.timeout_seconds
    if target.protocol is Protocol.GRPC:
        _quiet_grpc()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=target.endpoint, headers=headers, timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint=target.endpoint, headers=headers, timeout=timeout)


def metric_exporter(target: Target) -> MetricExporter:
    """As `span_exporter`."""
    headers, timeout = dict(target.headers), target.timeout_seconds
    if target.protocol is Protocol.GRPC:
        _quiet_grpc()
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

        return Grpc(endpoint=target.endpoint, headers=headers, timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

    return Http(endpoint=target.endpoint, headers=headers, timeout=timeout)


def _quiet_grpc() -> None:
    """gRPC's core writes to stderr past every logger, a line for each connection that a collector ends."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
