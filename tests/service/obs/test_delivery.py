"""Traces and metrics reach a collector over both protocols, and a collector that does not answer hinders nobody."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from support.free_ports import free_ports
from support.otlp_receiver import OtlpReceiver, otlp_receiver
from support.telemetry import configured
from yard_obs.catalogue import BATCH_SIZE, DECISIONS, NODE_COUNT
from yard_obs.tracing import acting_as, current_trace, link_to, span

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
SECRET = "s3cret-of-the-collector"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


def _environ(receiver: OtlpReceiver, protocol: str) -> dict[str, str]:
    return {ENDPOINT: receiver.grpc if protocol == "grpc" else receiver.http, PROTOCOL: protocol}


@pytest.fixture(params=["grpc", "http/protobuf"])
def environ(receiver: OtlpReceiver, request: pytest.FixtureRequest) -> dict[str, str]:
    return _environ(receiver, request.param)


async def test_spans_arrive_with_all_that_they_say(receiver: OtlpReceiver, environ: dict[str, str]) -> None:
    with configured("placement", **environ):
        with span("start task", attributes={"yard.attempt": 2}) as parent:
            linked = link_to(current_trace())
        assert linked is not None
        with span("run task", parent=current_trace(), links=(linked,)), span("start task") as child:
            child.set_attribute("yard.node", "n1")
        await receiver.until(lambda it: len(it.spans) == 3)

    [first] = [found for found in receiver.spans if found.span_id == format(parent.get_span_context().span_id, "016x")]
    [run] = receiver.named("run task")
    [inner] = [found for found in receiver.named("start task") if found is not first]
    assert (first.parent_id, first.attributes) == ("", {"yard.attempt": 2})
    assert run.links == ((first.trace_id, first.span_id),)
    assert (inner.trace_id, inner.parent_id, inner.attributes) == (run.trace_id, run.span_id, {"yard.node": "n1"})
    assert run.trace_id != first.trace_id
    assert first.end_ns <= run.start_ns <= inner.start_ns <= inner.end_ns <= run.end_ns
    assert {found.kind for found in receiver.spans} == {"internal"}
    assert (
        first.resource.items()
        >= {
            "service.name": "gpuyard-placement",
            "service.namespace": "gpuyard",
            "service.instance.id": "node-1/7",
            "telemetry.sdk.language": "python",
        }.items()
    )
    assert first.resource["service.version"]


async def test_metrics_arrive(receiver: OtlpReceiver, environ: dict[str, str]) -> None:
    with configured("placement", **environ) as telemetry:
        telemetry.metrics.counter(DECISIONS).add(3, outcome="granted", reason="fits")
        telemetry.metrics.histogram(BATCH_SIZE).record(3, service="placement", topic="t")
        telemetry.metrics.gauge(NODE_COUNT).set(2, state="alive")
        await receiver.until(lambda it: len({point.name for point in it.points}) == 3)
    found = {point.name: (point.kind, point.unit, point.value, dict(point.attributes)) for point in receiver.points}
    assert found == {
        DECISIONS.name: ("sum", "{decision}", 3, {"outcome": "granted", "reason": "fits"}),
        BATCH_SIZE.name: ("histogram", "{event}", 1, {"service": "placement", "topic": "t"}),
        NODE_COUNT.name: ("gauge", "{node}", 2, {"state": "alive"}),
    }


async def test_what_is_queued_at_the_end_is_sent(receiver: OtlpReceiver, environ: dict[str, str]) -> None:
    slow = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
    with configured(**environ, **slow) as telemetry:
        telemetry.metrics.gauge(NODE_COUNT).set(2, state="alive")
        for _ in range(700):
            with span("start task"):
                pass
    assert len(receiver.spans) == 700
    assert [point.name for point in receiver.points] == [NODE_COUNT.name]


async def test_each_service_of_a_process_has_its_name(receiver: OtlpReceiver) -> None:
    with configured("admission,billing", **_environ(receiver, "http/protobuf")) as telemetry:
        with acting_as("admission"), span("start task"), acting_as("billing"), span("run task"):
            pass
        with span("attempt 2"):
            pass
        telemetry.metrics.gauge(NODE_COUNT).set(2, state="alive")
        await receiver.until(lambda it: len(it.spans) == 3 and bool(it.points))
    assert {found.name: found.service for found in receiver.spans} == {
        "start task": "gpuyard-admission",
        "run task": "gpuyard-billing",
        "attempt 2": "gpuyard",
    }
    assert len({found.trace_id for found in receiver.spans}) == 2
    assert receiver.points[0].resource["service.name"] == "gpuyard"
    assert receiver.points[0].resource["yard.targets"] == ("admission", "billing")


async def test_an_operator_s_name_stands_above_ours(receiver: OtlpReceiver) -> None:
    own = {"OTEL_SERVICE_NAME": "yard-eu", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod"}
    with configured("admission,billing", **_environ(receiver, "http/protobuf"), **own):
        with acting_as("admission"), span("start task"):
            pass
        await receiver.until(lambda it: bool(it.spans))
    [found] = receiver.spans
    assert found.service == "yard-eu"
    assert found.resource["deployment.environment.name"] == "prod"


@pytest.mark.parametrize(
    ("sampler", "flags", "sampled"),
    [
        ("parentbased_always_on", "00", False),
        ("parentbased_always_off", "01", True),
        ("always_on", "00", True),
        ("parentbased_always_off", None, False),
        (None, None, True),
    ],
)
async def test_sampling_follows_the_caller_when_it_is_to(
    receiver: OtlpReceiver, sampler: str | None, flags: str | None, sampled: bool
) -> None:
    parent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-{flags}"} if flags is not None else None
    chosen = {"OTEL_TRACES_SAMPLER": sampler} if sampler is not None else {}
    with configured(**_environ(receiver, "http/protobuf"), **chosen), span("start task", parent=parent):
        flag = int(current_trace()["traceparent"][-2:], 16) & 1
    assert len(receiver.spans) == sampled
    assert flag == sampled, "who does not sample says so to the next"


async def test_credentials_reach_the_collector_and_no_log(
    receiver: OtlpReceiver, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET},x-scope-orgid=yard"}
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        with configured(**environ, **headers) as telemetry:
            with span("start task"):
                pass
            await receiver.until(lambda it: bool(it.spans))
            shown = repr(telemetry)
        [dead] = free_ports(1)
        gone = environ | {ENDPOINT: f"http://127.0.0.1:{dead}", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
        with configured(**gone, **headers), span("start task"):
            pass
    assert all(sent["authorization"] == f"Bearer {SECRET}" for sent in receiver.headers)
    assert {sent["x-scope-orgid"] for sent in receiver.headers} == {"yard"}
    assert lines, "the outage is told of"
    assert SECRET not in repr(lines) + shown + caplog.text


async def test_a_library_that_prints_a_secret_is_corrected(receiver: OtlpReceiver) -> None:
    """OpenTelemetry's own parser prints headers that it does not like."""
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}"}
    with capture_logs() as lines, configured(**_environ(receiver, "grpc"), **headers):
        logging.getLogger("opentelemetry.util.re").warning(
            "Header format invalid! %s", f"authorization=Bearer {SECRET}"
        )
    [line] = [line for line in lines if line["event"] == "opentelemetry"]
    assert line["message"] == "Header format invalid! authorization=[redacted]"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("answer", ["refuses", "is silent"])
async def test_a_collector_that_does_not_answer_hinders_nobody(protocol: str, answer: str) -> None:
    """Recording goes on at full speed, the queue keeps its size, and the end has its limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if answer == "is silent" else free_ports(1)[0]
        chosen = {ENDPOINT: f"http://127.0.0.1:{port}", PROTOCOL: protocol, "OTEL_BSP_MAX_QUEUE_SIZE": "100"}
        with capture_logs() as lines, configured(**chosen) as telemetry:
            began = time.perf_counter()
            for _ in range(2000):
                with span("start task"):
                    telemetry.metrics.counter(DECISIONS).add(1, outcome="granted", reason="fits")
            took = time.perf_counter() - began
            stopping = time.perf_counter()
            telemetry.shutdown(timeout_seconds=0.3)
            stopped = time.perf_counter() - stopping
    assert took < 2.0, "a millisecond a span would be a wait"
    assert stopped < 1.5
    assert any(line["event"] == "telemetry was not delivered before the end" for line in lines)


async def test_an_outage_is_one_line_and_its_end_another(
    receiver: OtlpReceiver, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    quick = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2", "OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with capture_logs() as lines, configured(**environ, **quick) as telemetry:
        receiver.away = True
        telemetry.metrics.gauge(NODE_COUNT).set(2, state="alive")
        for _ in range(5):
            failed_before = receiver.refused
            for _ in range(30):
                with span("start task"):
                    pass
            await receiver.until(lambda it, before=failed_before: it.refused > before)
        assert [line["event"] for line in lines] == ["telemetry is not delivered"]
        receiver.away = False
        await receiver.until(lambda it: bool(it.points))
        with span("run task"):
            pass
        await receiver.until(lambda it: bool(it.named("run task")))
    assert [line["event"] for line in lines] == ["telemetry is not delivered", "telemetry is delivered again"]
    assert lines[0]["collector"] == environ[ENDPOINT].removeprefix("http://")
    assert lines[0]["error"]
    assert lines[1]["lost_spans_at_least"] > 0
    assert caplog.text == "", "OpenTelemetry's own lines, one an attempt, are not wanted"


LOADED = """
import os, sys
from yard_obs.telemetry import configure_telemetry
from yard_obs.tracing import recording
telemetry = configure_telemetry("gateway", "test", os.environ)
print(recording(), *sorted(name for name in ("grpc", "requests", "google.protobuf") if name in sys.modules))
telemetry.shutdown()
"""


@pytest.mark.parametrize(
    ("environ", "loaded"),
    [
        ({}, "False"),
        ({ENDPOINT: "http://127.0.0.1:9", PROTOCOL: "http/protobuf"}, "True google.protobuf requests"),
        ({ENDPOINT: "http://127.0.0.1:9", PROTOCOL: "grpc"}, "True google.protobuf grpc"),
        ({ENDPOINT: "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}, "False google.protobuf requests"),
    ],
    ids=["no endpoint", "http", "grpc", "metrics only"],
)
def test_a_process_loads_only_what_it_sends_with(environ: dict[str, str], loaded: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=clean | environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == loaded


def test_structlog_is_what_the_tests_capture() -> None:
    """Guards the tests above: a logger cached earlier would write past `capture_logs`."""
    assert not structlog.get_config()["cache_logger_on_first_use"]
