"""One process may run several services; each has spans of its own name.

Grafana's service graph, Tempo's search and every span metric tell services apart by the resource attribute
`service.name`, and an SDK's tracer provider has one resource. So there is one SDK provider per service, over one
processor and one exporter, and the service that is acting where a span begins says which.
"""

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span
from opentelemetry.util.types import Attributes

from yard_obs.tracing import acting_service


class ServiceTracerProvider(trace.TracerProvider):
    """`provider_for(service)` makes a service's provider; None stands for the process itself."""

    def __init__(self, provider_for: Callable[[str | None], TracerProvider]) -> None:
        self._provider_for = provider_for
        self._providers: dict[str | None, TracerProvider] = {}

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        def tracer_for(service: str | None) -> trace.Tracer:
            return self._provider(service).get_tracer(
                instrumenting_module_name, instrumenting_library_version, schema_url, attributes
            )

        return _ServiceTracer(tracer_for)

    def _provider(self, service: str | None) -> TracerProvider:
        if service not in self._providers:
            self._providers[service] = self._provider_for(service)
        return self._providers[service]


class _ServiceTracer(trace.Tracer):
    def __init__(self, tracer_for: Callable[[str | None], trace.Tracer]) -> None:
        self._tracer_for = tracer_for
        self._tracers: dict[str | None, trace.Tracer] = {}

    def _acting(self) -> trace.Tracer:
        service = acting_service()
        tracer = self._tracers.get(service)
        if tracer is None:
            tracer = self._tracers[service] = self._tracer_for(service)
        return tracer

    def start_span(self, *args: Any, **kwargs: Any) -> Span:
        return self._acting().start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._acting().start_as_current_span(*args, **kwargs)
