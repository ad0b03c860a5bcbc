"""A real Prometheus answers every query of the dashboards and every alert, from what a host in trouble shows."""

import math
from collections.abc import Mapping
from pathlib import Path

from support.dashboards import alert_queries, filled, panel_queries
from support.metrics_host import serving_metrics
from support.prometheus_server import PrometheusServer, Sample, prometheus_server
from support.telemetry import configured
from yard_obs.catalogue import (
    ADMISSION_WAIT,
    CONSUMER_LAG,
    GPU_ALLOCATION,
    HTTP_METHOD,
    HTTP_ROUTE,
    HTTP_SERVER_DURATION,
    HTTP_STATUS,
    JOB_COUNT,
    METRICS,
    NODE_COUNT,
    SERVICE_ACTIVE,
    Kind,
    Metric,
    prometheus_name,
)
from yard_obs.metrics import Metrics

TOKEN = "the-scraper's-token"
SERVICES = ("admission", "billing", "inventory", "placement")

# Where a query asks for one value of a label, there is something of that value. The rest is recorded with any.
LABELS: Mapping[Metric, list[dict[str, str]]] = {
    JOB_COUNT: [{"queue": "a", "state": state} for state in ("queued", "admitted", "running")],
    NODE_COUNT: [{"state": state} for state in ("ready", "suspect", "lost")],
    GPU_ALLOCATION: [
        {"pool": "default", "model": "H200", "state": state} for state in ("free", "allocated", "dirty", "unhealthy")
    ],
    HTTP_SERVER_DURATION: [
        {HTTP_METHOD: "POST", HTTP_ROUTE: "/v1/jobs", HTTP_STATUS: status} for status in ("201", "503")
    ],
    SERVICE_ACTIVE: [{"service": name} for name in SERVICES],
}
VALUES: Mapping[Metric, float] = {SERVICE_ACTIVE: 1, CONSUMER_LAG: 5000}
# They ask what was five minutes ago, or for a target that is down.
NEEDS_A_PAST = {"YardConsumerLag", "YardTargetDown"}
NEEDS_AN_IDLE_SERVICE = {"YardServiceInactive"}


def _record(metrics: Metrics) -> None:
    """Everything grows by this at each call; gauges stay at a value that calls people."""
    for metric in METRICS.values():
        for labels in LABELS.get(metric, [dict.fromkeys(metric.labels, "x")]):
            if metric.kind is Kind.COUNTER:
                metrics.counter(metric).add(60, **labels)
            elif metric.kind is Kind.HISTOGRAM:
                metrics.histogram(metric).record(2.0, **labels)
            else:
                metrics.gauge(metric).set(VALUES.get(metric, 99), **labels)


def _has_data(samples: list[Sample]) -> bool:
    return any(not math.isnan(sample.value) for sample in samples)


async def _until_there_is_growth(prometheus: PrometheusServer, metrics: Metrics) -> None:
    """Rates need two scrapes with different values: once the first is there, more is recorded."""
    _record(metrics)
    await prometheus.until(f"{prometheus_name(ADMISSION_WAIT)}_count == 1")
    _record(metrics)
    await prometheus.until(f"rate({prometheus_name(ADMISSION_WAIT)}_count[1m]) > 0")


async def test_prometheus_answers_every_panel_with_data(tmp_path: Path) -> None:
    with configured("placement") as telemetry:
        async with (
            serving_metrics(telemetry, TOKEN) as address,
            prometheus_server(tmp_path, [address], token=TOKEN) as prometheus,
        ):
            await _until_there_is_growth(prometheus, telemetry.metrics)
            asked = list(panel_queries())
            assert asked
            answers = {each.where: await prometheus.query(filled(each.promql)) for each in asked}
            empty = {where for where, samples in answers.items() if not _has_data(samples)}
            assert empty == set()


async def test_prometheus_answers_every_alert(tmp_path: Path) -> None:
    with configured("placement") as telemetry:
        async with (
            serving_metrics(telemetry, TOKEN) as address,
            prometheus_server(tmp_path, [address], token=TOKEN) as prometheus,
        ):
            await _until_there_is_growth(prometheus, telemetry.metrics)
            answers = {each.where: await prometheus.query(each.promql) for each in alert_queries()}
            silent = {name for name, samples in answers.items() if not samples}
            assert silent == NEEDS_A_PAST | NEEDS_AN_IDLE_SERVICE

            telemetry.metrics.gauge(SERVICE_ACTIVE).set(0, service="billing")
            [inactive] = [each.promql for each in alert_queries() if each.where == "YardServiceInactive"]
            [sample] = await prometheus.until(inactive)
            assert sample.labels == {"service": "billing"}
            telemetry.metrics.gauge(SERVICE_ACTIVE).remove(service="billing")
            [sample] = await prometheus.until(inactive, lambda found: bool(found) and found[0].value == 1)
            assert sample.labels == {"service": "billing"}
