"""The process's traces and metrics, configured by the standard OTEL_* variables.

Metrics are always there to be scraped; traces are recorded, and both are sent, only with an OTLP endpoint. Nothing
that serves waits for a collector: spans are queued and the newest kept, threads export, and shutting down has a limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from threading import Lock, Thread
from typing import TYPE_CHECKING

import structlog
from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from yard_obs.metrics import Metrics
from yard_obs.otlp_settings import OtelSettings, Sampling
from yard_obs.service_tracers import ServiceTracerProvider
from yard_obs.tracing import record_with

if TYPE_CHECKING:
    from yard_obs.delivery import Exports

_log = structlog.get_logger("yard.telemetry")

NAMESPACE = "gpuyard"


@dataclass(slots=True)
class Telemetry:
    """What a process records with, what it exposes, and how it stops."""

    metrics: Metrics
    tracers: trace.TracerProvider | None
    """None when nothing is recorded: spans are then no-ops."""
    _registry: CollectorRegistry
    _meters: MeterProvider
    _spans: SpanProcessor | None = None
    _exports: "Exports | None" = None
    _shut: bool = False
    _scraping: Lock = field(default_factory=Lock)

    def prometheus(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics as they are now, and their content type: OpenMetrics when the Accept header asks for it.

        Takes milliseconds, tens of them for a thousand series: call it in a thread.
        """
        encoder, content_type = choose_encoder(accept)
        with self._scraping:  # two at once would take parts of each other's collection
            return encoder(self._registry), content_type

    def shutdown(self, timeout_seconds: float = 2.0) -> None:
        """Send what is queued, for at most so long; the rest is lost, with a line in the log. Blocks. Once."""
        if self._shut:
            return
        self._shut = True
        record_with(None)
        closing = Thread(target=self._close, name="closing telemetry", daemon=True)
        closing.start()
        closing.join(timeout_seconds)
        if closing.is_alive():
            _log.warning("telemetry was not delivered before the end", waited_seconds=timeout_seconds)
            if self._exports is not None:
                self._exports.give_up()

    def _close(self) -> None:
        if self._spans is not None:
            self._spans.shutdown()
        self._meters.shutdown(timeout_millis=10_000)
        if self._exports is not None:
            self._exports.close()


def configure_telemetry(service: str, instance: str, environ: Mapping[str, str]) -> Telemetry:
    """Once per process, before anything is recorded. `service`: the services of this process, separated by commas;
    `instance` names the process among its like.

    `yard_obs.tracing` records from then on, when there is somewhere to send spans. Raises InvalidField for an OTEL_*
    variable that cannot work.
    """
    settings = OtelSettings.read(environ)
    resource = _resource(settings, service.split(","), instance)
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]
    exports = _exports(settings)
    spans = exports.span_processor() if exports is not None else None
    if exports is not None and (reader := exports.metric_reader()) is not None:
        readers.append(reader)
    tracers: trace.TracerProvider | None = None
    if spans is not None:
        tracers = _tracers(settings, resource, spans)
        record_with(tracers)
    meters = MeterProvider(
        readers,
        resource,
        # Exemplars travel over OTLP alone.
        TraceBasedExemplarFilter() if settings.metrics is not None else AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    metrics = Metrics(meters.get_meter("gpuyard"))
    return Telemetry(metrics, tracers, registry, meters, spans, exports)


def _exports(settings: OtelSettings) -> "Exports | None":
    if settings.traces is None and settings.metrics is None:
        return None
    # Here, because a process without an endpoint has no use for exporters and the memory that they take.
    from yard_obs.delivery import Exports

    return Exports(settings)


def _resource(settings: OtelSettings, services: Sequence[str], instance: str) -> Resource:
    own = {
        "service.namespace": NAMESPACE,
        "service.name": service_name(services[0]) if len(services) == 1 else NAMESPACE,
        "service.instance.id": instance,
        "service.version": version("gpuyard"),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": version("opentelemetry-sdk"),
    }
    named = {"service.name": settings.service_name} if settings.service_name is not None else {}
    return Resource({**own, "yard.targets": tuple(services), **settings.resource, **named})


def service_name(service: str) -> str:
    """`service.name` of one of our services."""
    return f"{NAMESPACE}-{service}"


def _tracers(settings: OtelSettings, resource: Resource, spans: SpanProcessor) -> ServiceTracerProvider:
    sampler = _sampler(settings.sampling)

    def provider_for(service: str | None) -> TracerProvider:
        own = resource
        # An operator's own name for the process stands above the names of its services.
        if service is not None and settings.service_name is None:
            own = resource.merge(Resource({"service.name": service_name(service)}))
        provider = TracerProvider(sampler=sampler, resource=own, shutdown_on_exit=False)
        provider.add_span_processor(spans)
        return provider

    return ServiceTracerProvider(provider_for)


def _sampler(sampling: Sampling) -> Sampler:
    root = TraceIdRatioBased(sampling.ratio)
    return ParentBased(root) if sampling.parent_based else root
