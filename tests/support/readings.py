"""What a process's metrics say, as a collection would find them."""

from dataclasses import dataclass, field

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from yard_obs.catalogue import Metric
from yard_obs.metrics import Metrics


@dataclass
class Readings:
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = Metrics(provider.get_meter("gpuyard"))

    def values(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """Values by labels, in the order that the catalogue has them; of a histogram, how often it was recorded."""
        return {
            key: point.count if isinstance(point, HistogramDataPoint) else point.value
            for key, point in self._points(metric).items()
        }

    def sums(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """Of a histogram, the sum of what was recorded."""
        return {k: point.sum for k, point in self._points(metric).items() if isinstance(point, HistogramDataPoint)}

    def _points(self, metric: Metric) -> dict[tuple[str, ...], HistogramDataPoint | NumberDataPoint]:
        data = self.reader.get_metrics_data()
        return {
            tuple(str((point.attributes or {})[label]) for label in metric.labels): point
            for resource in (data.resource_metrics if data is not None else [])
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric.name
            for point in found.data.data_points
            if isinstance(point, HistogramDataPoint | NumberDataPoint)
        }
