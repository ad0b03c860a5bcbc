"""Recording metrics: what the catalogue has, with the labels that it has, and nothing else.

One `Metrics` per process, made by `telemetry.configure_telemetry` and given to whoever records. Gauges and observed
counters are read when somebody asks; the thread that asks may be another one than the one that records.
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics as otel

from yard_obs.catalogue import METRICS, Kind, Metric, NotInCatalogue

LabelValue = str | int
Labels = Mapping[str, LabelValue]
Reading = tuple[float, Labels]
Observe = Callable[[], Iterable[Reading]]
"""Called at each collection, from any thread: reads plain values, waits for nothing."""


class _Recorded:
    """A metric and the check of its labels."""

    __slots__ = ("_labels", "_metric")

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._labels = frozenset(metric.labels)

    def _check(self, labels: Labels) -> None:
        if labels.keys() ^ self._labels:
            expected = ", ".join(self._metric.labels) or "none"
            raise NotInCatalogue(f"{self._metric.name} has the labels {expected}, not {', '.join(labels) or 'none'}")


class Counter(_Recorded):
    __slots__ = ("_instrument",)

    def __init__(self, metric: Metric, instrument: otel.Counter) -> None:
        super().__init__(metric)
        self._instrument = instrument

    def add(self, amount: float = 1, /, **labels: LabelValue) -> None:
        """Raises NotInCatalogue when the labels are not exactly the metric's. The same holds for all instruments."""
        self._check(labels)
        self._instrument.add(amount, labels)


class Histogram(_Recorded):
    __slots__ = ("_instrument",)

    def __init__(self, metric: Metric, instrument: otel.Histogram) -> None:
        super().__init__(metric)
        self._instrument = instrument

    def record(self, value: float, /, **labels: LabelValue) -> None:
        """`value` in the metric's unit: seconds for durations."""
        self._check(labels)
        self._instrument.record(value, labels)


class _Observed(_Recorded):
    """Whoever has readings of one metric; OpenTelemetry knows one callback, which asks them all."""

    __slots__ = ("_observers",)

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric)
        self._observers: tuple[Observe, ...] = ()

    def observe(self, observe: Observe) -> Callable[[], None]:
        self._observers = (*self._observers, observe)

        def stop() -> None:
            self._observers = tuple(other for other in self._observers if other is not observe)

        return stop

    def read(self, _options: otel.CallbackOptions) -> list[otel.Observation]:
        found: list[otel.Observation] = []
        for observe in self._observers:
            for value, labels in observe():
                self._check(labels)
                found.append(otel.Observation(value, labels))
        return found


class Gauge(_Recorded):
    """Values that stand until they are set again or removed: what is no longer there is not reported on."""

    __slots__ = ("_values",)

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric)
        self._values: dict[tuple[LabelValue, ...], float] = {}

    def set(self, value: float, /, **labels: LabelValue) -> None:
        self._check(labels)
        self._values[self._key(labels)] = value

    def remove(self, **labels: LabelValue) -> None:
        """Nothing happens when there is no such value."""
        self._check(labels)
        self._values.pop(self._key(labels), None)

    def replace(self, readings: Iterable[Reading], **within: LabelValue) -> None:
        """These are all the values that there are with the labels `within`; others with them go. `readings` may leave
        those labels out.

        Without `within` nobody else may record this gauge: their values would go too.
        """
        unknown = within.keys() - self._labels
        if unknown:
            raise NotInCatalogue(f"{self._metric.name} has no label {', '.join(sorted(unknown))}")
        fresh: dict[tuple[LabelValue, ...], float] = {}
        for value, labels in readings:
            whole = {**labels, **within}
            self._check(whole)
            fresh[self._key(whole)] = value
        places = [(self._metric.labels.index(name), value) for name, value in within.items()]
        kept = {k: v for k, v in self._values.items() if any(k[place] != value for place, value in places)}
        self._values = kept | fresh

    def readings(self) -> list[Reading]:
        values = self._values.copy()  # in one step: another thread may be collecting
        return [(value, dict(zip(self._metric.labels, key, strict=True))) for key, value in values.items()]

    def _key(self, labels: Labels) -> tuple[LabelValue, ...]:
        return tuple([labels[name] for name in self._metric.labels])


class Metrics:
    """The process's instruments, by metric of the catalogue. Asking twice gives the same instrument.

    Every method raises NotInCatalogue for a metric that is not there or is of another kind.
    """

    def __init__(self, meter: otel.Meter) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        self._observed: dict[str, _Observed] = {}

    def counter(self, metric: Metric) -> Counter:
        _require(metric, Kind.COUNTER)
        if metric.name in self._observed:
            raise NotInCatalogue(f"{metric.name} is observed here and cannot be counted as well")
        if metric.name not in self._counters:
            instrument = self._meter.create_counter(metric.name, metric.unit, metric.description)
            self._counters[metric.name] = Counter(metric, instrument)
        return self._counters[metric.name]

    def histogram(self, metric: Metric) -> Histogram:
        _require(metric, Kind.HISTOGRAM)
        if metric.name not in self._histograms:
            instrument = self._meter.create_histogram(
                metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
            )
            self._histograms[metric.name] = Histogram(metric, instrument)
        return self._histograms[metric.name]

    def gauge(self, metric: Metric) -> Gauge:
        _require(metric, Kind.GAUGE)
        if metric.name not in self._gauges:
            gauge = Gauge(metric)
            self.observe(metric, gauge.readings)
            self._gauges[metric.name] = gauge
        return self._gauges[metric.name]

    def observe(self, metric: Metric, observe: Observe) -> Callable[[], None]:
        """Have a gauge, or a counter that is a total kept elsewhere, read at each collection. Returns what ends that.

        Several may observe one metric, each with label sets of its own.
        """
        _require(metric, Kind.GAUGE, Kind.COUNTER)
        if metric.name in self._counters:
            raise NotInCatalogue(f"{metric.name} is counted here and cannot be observed as well")
        if metric.name not in self._observed:
            observed = _Observed(metric)
            create = (
                self._meter.create_observable_gauge
                if metric.kind is Kind.GAUGE
                else self._meter.create_observable_counter
            )
            create(metric.name, [observed.read], metric.unit, metric.description)
            self._observed[metric.name] = observed
        return self._observed[metric.name].observe(observe)


def no_metrics() -> Metrics:
    """Checks names and labels and records nothing: for tests, and for what runs without telemetry."""
    return Metrics(otel.NoOpMeter("gpuyard"))


def _require(metric: Metric, *kinds: Kind) -> None:
    if METRICS.get(metric.name) is not metric:
        raise NotInCatalogue(f"{metric.name} is not in the catalogue")
    if metric.kind not in kinds:
        raise NotInCatalogue(f"{metric.name} is a {metric.kind}, not a {' or a '.join(kinds)}")
