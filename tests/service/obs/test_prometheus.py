"""A real Prometheus scrapes a host's /metrics and answers in the catalogue's names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from support.metrics_host import serving_metrics
from support.prometheus_server import prometheus_server
from support.telemetry import configured
from yard_obs.catalogue import (
    DECISIONS,
    JOB_COUNT,
    METRICS,
    NODE_COUNT,
    Kind,
    Metric,
    prometheus_label,
    prometheus_name,
    prometheus_series,
)
from yard_obs.metrics import Metrics
from yard_runtime.http import install_problem_handlers
from yard_runtime.metrics_endpoint import metrics_route

INTERNAL, SCRAPER = "the-internal-token", "the-scraper's-token"


@pytest.fixture
async def host() -> AsyncIterator[tuple[Metrics, str]]:
    with configured("admission,placement") as telemetry:
        async with serving_metrics(telemetry, INTERNAL, SCRAPER) as address:
            yield telemetry.metrics, address


def _record(metrics: Metrics, metric: Metric) -> None:
    labels = dict.fromkeys(metric.labels, "x")
    if metric.kind is Kind.COUNTER:
        metrics.counter(metric).add(3, **labels)
    elif metric.kind is Kind.HISTOGRAM:
        metrics.histogram(metric).record(2.0, **labels)
    else:
        metrics.gauge(metric).set(3, **labels)


async def test_prometheus_has_every_metric_under_the_name_that_the_catalogue_says(
    host: tuple[Metrics, str], tmp_path: Path
) -> None:
    metrics, address = host
    for metric in METRICS.values():
        _record(metrics, metric)
    async with prometheus_server(tmp_path, [address], token=SCRAPER) as prometheus:
        await prometheus.until("up == 1")
        for metric in METRICS.values():
            for series in prometheus_series(metric):
                found = await prometheus.until(series)
                labels = set(found[0].labels) - {"job", "instance", "le"}
                assert labels == {prometheus_label(label) for label in metric.labels}, series
        declared = await prometheus.metadata()
        for metric in METRICS.values():
            # OpenMetrics declares a counter without its suffix.
            assert declared[prometheus_name(metric).removesuffix("_total")] == metric.kind
        known = {series for metric in METRICS.values() for series in prometheus_series(metric)}
        ours = await prometheus.query('{__name__=~"(yard|hw|http)_.*", __name__!~".*_created"}')
        assert {sample.name for sample in ours} == known


async def test_prometheus_answers_what_a_dashboard_asks(host: tuple[Metrics, str], tmp_path: Path) -> None:
    metrics, address = host
    jobs = metrics.gauge(JOB_COUNT)
    jobs.set(4, state="queued", queue="a")
    jobs.set(2, state="running", queue="a")
    jobs.set(5, state="queued", queue="b")
    async with prometheus_server(tmp_path, [address], token=SCRAPER) as prometheus:
        asked = f"sum by (state) ({prometheus_name(JOB_COUNT)})"
        found = await prometheus.until(asked, lambda samples: len(samples) == 2)
        assert {sample.labels["state"]: sample.value for sample in found} == {"queued": 9, "running": 2}
        assert await prometheus.query("target_info") != []
        [target] = await prometheus.query("target_info")
        assert target.labels["service_namespace"] == "gpuyard"

        jobs.replace([(1, {"state": "queued"})], queue="a")
        await prometheus.until(asked, lambda samples: {s.labels["state"]: s.value for s in samples} == {"queued": 6})

        decisions = metrics.counter(DECISIONS)
        rate = f"rate({prometheus_name(DECISIONS)}[10s])"
        decisions.add(1, outcome="granted", reason="fits")
        await prometheus.until(prometheus_name(DECISIONS))
        decisions.add(500, outcome="granted", reason="fits")
        [sample] = await prometheus.until(rate, lambda samples: bool(samples) and samples[0].value > 0)
        assert sample.labels["outcome"] == "granted"
        with pytest.raises(ValueError, match="parse error"):
            await prometheus.query("sum by (")


async def test_a_scraper_with_another_token_gets_nothing(host: tuple[Metrics, str], tmp_path: Path) -> None:
    _, address = host
    async with prometheus_server(tmp_path, [address], token="another") as prometheus:
        await prometheus.until("up == 0")
        [error] = (await prometheus.target_errors()).values()
        assert "401" in error


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {INTERNAL}", 200),
        (f"bearer {SCRAPER}", 200),
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        (SCRAPER, 401),
        (f"Basic {SCRAPER}", 401),
        (f"Bearer {SCRAPER}x", 401),
    ],
)
async def test_metrics_are_for_who_holds_a_token(
    host: tuple[Metrics, str], authorization: str | None, status: int
) -> None:
    metrics, address = host
    metrics.gauge(NODE_COUNT).set(3, state="alive")
    headers = {"authorization": authorization} if authorization is not None else {}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers) as http:
        answer = await http.get("/metrics")
    assert answer.status_code == status
    assert ("yard_node_count" in answer.text) == (status == 200)
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"


async def test_scrapes_at_the_same_time_are_whole(host: tuple[Metrics, str]) -> None:
    metrics, address = host
    for metric in METRICS.values():
        _record(metrics, metric)
    async with httpx.AsyncClient(base_url=f"http://{address}", headers={"authorization": f"Bearer {SCRAPER}"}) as http:
        answers = await asyncio.gather(*(http.get("/metrics") for _ in range(16)))
    assert len({answer.text for answer in answers}) == 1
    assert all(prometheus_name(metric) in answers[0].text for metric in METRICS.values())


async def test_an_unset_token_opens_nothing() -> None:
    with configured() as telemetry:
        app = FastAPI()
        install_problem_handlers(app)
        app.include_router(metrics_route(telemetry, tokens=[INTERNAL, ""]))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as http:
            assert (await http.get("/metrics", headers={"authorization": "Bearer "})).status_code == 401
            assert (await http.get("/metrics", headers={"authorization": f"Bearer {INTERNAL}"})).status_code == 200


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4", ""),
        ("text/plain", "text/plain; version=0.0.4", ""),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text", "# EOF\n"),
    ],
)
async def test_the_format_is_what_the_scraper_asks_for(
    host: tuple[Metrics, str], accept: str, content_type: str, end: str
) -> None:
    metrics, address = host
    metrics.gauge(NODE_COUNT).set(3, state="alive")
    headers = {"authorization": f"Bearer {SCRAPER}", "accept": accept}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers) as http:
        answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith(content_type)
    assert answer.text.endswith(end)
    assert 'yard_node_count{state="alive"} 3.0\n' in answer.text
