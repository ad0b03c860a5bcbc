"""The catalogue is consistent in itself, with OpenTelemetry's names, and with what the code records."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.metrics import hw_metrics
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes
from opentelemetry.semconv.metrics import http_metrics

from yard_obs import catalogue
from yard_obs.catalogue import (
    METRICS,
    Kind,
    Metric,
    NotInCatalogue,
    check_span,
    metric_named,
    prometheus_name,
    prometheus_series,
    span_type,
)

ROOT = Path(__file__).parents[3]


def test_every_metric_of_the_module_is_found_by_its_name() -> None:
    declared = [value for value in vars(catalogue).values() if isinstance(value, Metric)]
    assert {metric.name: metric for metric in declared} == METRICS
    assert all(metric_named(metric.name) is metric for metric in declared)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(NotInCatalogue, match=r"yard\.job\.counts"):
        metric_named("yard.job.counts")


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_metrics_are_described_and_bounded(metric: Metric) -> None:
    assert metric.description.endswith(".")
    assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len(set(metric.labels)) == len(metric.labels)
    unbounded = {"job", "job_id", "yard.job.id", "allocation", "attempt", "uuid", "device", "hw.id"}
    assert metric.name.startswith("hw.") or not unbounded & set(metric.labels)


def test_what_opentelemetry_names_has_its_names_and_units() -> None:
    assert catalogue.HTTP_SERVER_DURATION.name == http_metrics.HTTP_SERVER_REQUEST_DURATION
    assert {metric.name for metric in METRICS.values() if metric.name.startswith("hw.")} == {
        hw_metrics.HW_GPU_UTILIZATION,
        hw_metrics.HW_GPU_MEMORY_USAGE,
        hw_metrics.HW_POWER,
        hw_metrics.HW_TEMPERATURE,
        hw_metrics.HW_ERRORS,
    }
    assert (catalogue.HTTP_METHOD, catalogue.HTTP_ROUTE, catalogue.HTTP_STATUS) == (
        http_attributes.HTTP_REQUEST_METHOD,
        http_attributes.HTTP_ROUTE,
        http_attributes.HTTP_RESPONSE_STATUS_CODE,
    )
    assert (catalogue.URL_PATH, catalogue.ERROR_TYPE) == (url_attributes.URL_PATH, error_attributes.ERROR_TYPE)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (catalogue.JOB_COUNT, "yard_job_count"),
        (catalogue.DECISIONS, "yard_scheduler_decisions_total"),
        (catalogue.ADMISSION_WAIT, "yard_admission_wait_duration_seconds"),
        (catalogue.OUTBOX_OLDEST_AGE, "yard_outbox_oldest_age_seconds"),
        (catalogue.BILLED_GPU_TIME, "yard_billing_gpu_time_seconds_total"),
        (catalogue.GPU_FRAGMENTATION, "yard_gpu_fragmentation"),
        (catalogue.HTTP_SERVER_DURATION, "http_server_request_duration_seconds"),
        (catalogue.HW_GPU_MEMORY_USAGE, "hw_gpu_memory_usage_bytes"),
        (catalogue.HW_POWER, "hw_power_watts"),
        (catalogue.HW_TEMPERATURE, "hw_temperature_celsius"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_in_promql(metric: Metric, expected: str) -> None:
    assert prometheus_name(metric) == expected


def test_a_histogram_has_three_series() -> None:
    assert prometheus_series(catalogue.BATCH_SIZE) == (
        "yard_consumer_batch_size_bucket",
        "yard_consumer_batch_size_sum",
        "yard_consumer_batch_size_count",
    )
    assert prometheus_series(catalogue.NODE_COUNT) == ("yard_node_count",)


@pytest.mark.parametrize(
    ("name", "kind", "of"),
    [
        ("send yard.jobs.requests.v1", "producer", "send {messaging.destination.name}"),
        ("process yard.nodes.events.v1", "consumer", "process {messaging.destination.name}"),
        ("POST /v1/jobs", "server", "{http.request.method} {http.route}"),
        ("GET /internal/admission/queues/{name}", "server", "{http.request.method} {http.route}"),
        ("GET", "server", "{http.request.method} {http.route}"),
        ("GET", "client", "{http.request.method}"),
        ("attempt 12", "internal", "attempt {yard.attempt}"),
        ("start task", "internal", "start task"),
    ],
)
def test_a_recorded_span_has_a_type(name: str, kind: str, of: str) -> None:
    assert span_type(name, kind).name == of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("send yard.jobs.requests.v1", "consumer"),
        ("send", "producer"),
        ("attempt first", "internal"),
        ("start task 7", "internal"),
        ("GET v1/jobs", "server"),
        ("SEND /v1/jobs", "server"),
    ],
)
def test_other_spans_have_none(name: str, kind: str) -> None:
    with pytest.raises(NotInCatalogue):
        span_type(name, kind)


def test_a_span_has_no_attribute_that_its_type_has_not() -> None:
    check_span("POST /v1/jobs", "server", ["http.route", "yard.job.id"])
    with pytest.raises(NotInCatalogue, match=r"url\.query"):
        check_span("POST /v1/jobs", "server", ["http.route", "url.query"])


def _span_names() -> Iterator[tuple[str, str]]:
    """(place, name) of every span that the code begins, as far as its text says the name."""
    for path in sorted([*ROOT.glob("libs/**/*.py"), *ROOT.glob("services/**/*.py")]):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called not in ("span", "past_span", "open_span", "start_span"):
                continue
            name = node.args[0]
            if isinstance(name, ast.Name):
                name = constants.get(name.id, name)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", name.value
            elif isinstance(name, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "*" for part in name.values]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)


def test_every_span_that_the_code_begins_is_in_the_catalogue() -> None:
    known = {"".join("*" if part.startswith("{") else part for part in _parts(span.name)) for span in catalogue.SPANS}
    found = list(_span_names())
    assert {name for _, name in found} >= {"send *", "process *", "start task"}
    assert [(place, name) for place, name in found if name not in known] == []


def _parts(name: str) -> list[str]:
    return name.replace("{", "\0{").replace("}", "}\0").split("\0")
