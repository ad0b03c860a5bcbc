"""Only what the catalogue has is recorded, and what is gone is not reported on."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from yard_obs.catalogue import (
    BATCH_SIZE,
    CONSUMER_LAG,
    DECISIONS,
    HW_ERRORS,
    JOB_COUNT,
    NODE_COUNT,
    RELAY_EVENTS,
    SERVICE_ACTIVE,
    Metric,
    NotInCatalogue,
)
from yard_obs.metrics import Metrics, no_metrics

Point = NumberDataPoint | HistogramDataPoint


class Collected:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.metrics = Metrics(self._provider.get_meter("tests"))

    def points(self, metric: Metric) -> list[Point]:
        data = self._reader.get_metrics_data()
        return [
            point  # type: ignore[misc]
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric.name
            for point in found.data.data_points
        ]

    def values(self, metric: Metric) -> dict[tuple[object, ...], float]:
        """By label values, in the catalogue's order."""
        found: dict[tuple[object, ...], float] = {}
        for point in self.points(metric):
            assert isinstance(point, NumberDataPoint)
            found[tuple((point.attributes or {})[label] for label in metric.labels)] = point.value
        return found


@pytest.fixture
def collected() -> Collected:
    return Collected()


RECORDINGS: dict[str, Callable[[Metrics], object]] = {
    "unknown label": lambda m: m.counter(DECISIONS).add(1, outcome="granted", reason="fits", job="j"),
    "missing label": lambda m: m.counter(DECISIONS).add(1, outcome="granted"),
    "no labels": lambda m: m.histogram(BATCH_SIZE).record(3),
    "gauge, unknown label": lambda m: m.gauge(NODE_COUNT).set(1, status="alive"),
    "gauge, missing label": lambda m: m.gauge(JOB_COUNT).remove(state="queued"),
    "replaced within an unknown label": lambda m: m.gauge(JOB_COUNT).replace([], pool="a"),
    "replaced with an unknown label": lambda m: m.gauge(NODE_COUNT).replace([(1, {"status": "alive"})]),
    "a counter is no histogram": lambda m: m.histogram(DECISIONS),
    "a gauge is no counter": lambda m: m.counter(NODE_COUNT),
    "a histogram is not observed": lambda m: m.observe(BATCH_SIZE, list),
    "not in the catalogue": lambda m: m.gauge(replace(NODE_COUNT, name="yard.node.counts")),
    "another one under its name": lambda m: m.gauge(replace(NODE_COUNT, labels=("node",))),
}


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
@pytest.mark.parametrize("metrics", [lambda: Collected().metrics, no_metrics], ids=["recording", "null"])
def test_what_the_catalogue_has_not_is_refused(
    metrics: Callable[[], Metrics], recording: Callable[[Metrics], object]
) -> None:
    with pytest.raises(NotInCatalogue):
        recording(metrics())


def test_counters_add_up_by_label_set(collected: Collected) -> None:
    events = collected.metrics.counter(RELAY_EVENTS)
    events.add(2, service="admission", topic="t")
    events.add(3, service="admission", topic="t")
    collected.metrics.counter(RELAY_EVENTS).add(service="placement", topic="t")
    assert collected.values(RELAY_EVENTS) == {("admission", "t"): 5, ("placement", "t"): 1}


def test_a_histogram_has_the_catalogue_s_buckets(collected: Collected) -> None:
    for size in (1, 2, 700):
        collected.metrics.histogram(BATCH_SIZE).record(size, service="admission", topic="t")
    [point] = collected.points(BATCH_SIZE)
    assert isinstance(point, HistogramDataPoint)
    assert tuple(point.explicit_bounds) == BATCH_SIZE.buckets
    assert list(point.bucket_counts) == [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_gauge_stands_until_it_is_removed(collected: Collected) -> None:
    jobs = collected.metrics.gauge(JOB_COUNT)
    jobs.set(4, state="queued", queue="a")
    jobs.set(5, state="queued", queue="b")
    jobs.set(3, state="queued", queue="a")
    assert collected.values(JOB_COUNT) == {("queued", "a"): 3, ("queued", "b"): 5}
    jobs.remove(queue="a", state="queued")
    jobs.remove(queue="never", state="set")
    assert collected.values(JOB_COUNT) == {("queued", "b"): 5}
    assert collected.values(JOB_COUNT) == {("queued", "b"): 5}, "and at the next collection as well"


def test_replacing_takes_what_is_gone_and_leaves_what_is_others(collected: Collected) -> None:
    lag = collected.metrics.gauge(CONSUMER_LAG)
    lag.set(7, service="billing", topic="t", partition=0)
    lag.replace([(1, {"topic": "t", "partition": 0}), (2, {"topic": "t", "partition": 1})], service="admission")
    lag.replace([(9, {"topic": "t", "partition": 1})], service="admission")
    assert collected.values(CONSUMER_LAG) == {("billing", "t", 0): 7, ("admission", "t", 1): 9}
    lag.replace([])
    assert collected.values(CONSUMER_LAG) == {}


def test_several_observe_one_metric_until_they_stop(collected: Collected) -> None:
    state = {"admission": 0}
    stop = collected.metrics.observe(SERVICE_ACTIVE, lambda: [(state["admission"], {"service": "admission"})])
    collected.metrics.observe(SERVICE_ACTIVE, lambda: [(1, {"service": "billing"})])
    state["admission"] = 1
    assert collected.values(SERVICE_ACTIVE) == {("admission",): 1, ("billing",): 1}
    stop()
    assert collected.values(SERVICE_ACTIVE) == {("billing",): 1}


def test_a_counter_is_counted_here_or_read_elsewhere(collected: Collected) -> None:
    labels = dict.fromkeys(HW_ERRORS.labels, "x")
    collected.metrics.observe(HW_ERRORS, lambda: [(12, labels)])
    assert list(collected.values(HW_ERRORS).values()) == [12]
    with pytest.raises(NotInCatalogue, match="observed"):
        collected.metrics.counter(HW_ERRORS)
    collected.metrics.counter(DECISIONS)
    with pytest.raises(NotInCatalogue, match="counted"):
        collected.metrics.observe(DECISIONS, list)
