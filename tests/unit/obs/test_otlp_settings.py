"""The standard variables, as OpenTelemetry's specification describes them."""

from typing import Any

import pytest

from yard_domain.errors import InvalidField
from yard_obs.otlp_settings import OtelSettings, Protocol, Sampling, Signal, Target

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def _target(signal: Signal, environ: dict[str, str]) -> Target | None:
    settings = OtelSettings.read(environ)
    return settings.traces if signal is Signal.TRACES else settings.metrics


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize(
    ("environ", "protocol", "endpoint"),
    [
        ({ENDPOINT: "http://c:4318"}, Protocol.HTTP, "http://c:4318/v1/{}"),
        ({ENDPOINT: "http://c:4318/otlp/"}, Protocol.HTTP, "http://c:4318/otlp/v1/{}"),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, Protocol.GRPC, "http://c:4317"),
        (
            {ENDPOINT: "https://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            Protocol.HTTP,
            "https://c:4317/v1/{}",
        ),
    ],
)
def test_where_a_signal_goes(signal: Signal, environ: dict[str, str], protocol: Protocol, endpoint: str) -> None:
    target = _target(signal, environ)
    assert target is not None
    assert (target.protocol, target.endpoint) == (protocol, endpoint.format(signal))


def test_a_signal_s_own_variables_stand_above_those_for_all() -> None:
    settings = OtelSettings.read(
        {
            ENDPOINT: "http://all:4318",
            "OTEL_EXPORTER_OTLP_HEADERS": "tenant=all",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:4317",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "tenant=own",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
        }
    )
    assert settings.traces == Target(Signal.TRACES, Protocol.GRPC, "http://own:4317", 3.0, {"tenant": "own"})
    assert settings.metrics == Target(
        Signal.METRICS, Protocol.HTTP, "http://all:4318/v1/metrics", 10.0, {"tenant": "all"}
    )


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, False, False),
        ({ENDPOINT: " "}, False, False),
        ({ENDPOINT: "http://c:1", "OTEL_SDK_DISABLED": "true"}, False, False),
        ({ENDPOINT: "http://c:1", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({ENDPOINT: "http://c:1", "OTEL_METRICS_EXPORTER": "prometheus"}, True, False),
        ({ENDPOINT: "http://c:1", "OTEL_TRACES_EXPORTER": "none"}, False, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/v1/traces"}, True, False),
    ],
)
def test_what_is_sent_at_all(environ: dict[str, str], traces: bool, metrics: bool) -> None:
    settings = OtelSettings.read(environ)
    assert (settings.traces is not None, settings.metrics is not None) == (traces, metrics)


def test_headers_are_decoded_and_kept_out_of_sight() -> None:
    given = "Authorization=Basic%20czNjcjN0,X-Scope=a%2Cb=c"
    target = _target(Signal.TRACES, {ENDPOINT: "http://c:1", "OTEL_EXPORTER_OTLP_HEADERS": given})
    assert target is not None
    assert target.headers == {"authorization": "Basic czNjcjN0", "x-scope": "a,b=c"}
    assert "czNjcjN0" not in repr(target)
    settings = OtelSettings.read({ENDPOINT: "http://c:1", "OTEL_EXPORTER_OTLP_HEADERS": given})
    assert settings.secrets() == {"Basic czNjcjN0", "a,b=c"}


@pytest.mark.parametrize(
    ("environ", "sampling"),
    [
        ({}, Sampling(1.0, parent_based=True)),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Sampling(0.0, parent_based=False)),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            Sampling(0.25, parent_based=True),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, Sampling(1.0, parent_based=False)),
    ],
)
def test_samplers(environ: dict[str, str], sampling: Sampling) -> None:
    assert OtelSettings.read(environ).sampling == sampling


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=other"}, "other"),
        ({}, None),
    ],
)
def test_an_operator_names_the_process(environ: dict[str, str], name: str | None) -> None:
    assert OtelSettings.read(environ).service_name == name


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (ENDPOINT, "collector:4317"),
        (ENDPOINT, "ftp://collector:21"),
        (ENDPOINT, "http://collector:port"),
        (ENDPOINT, "http://me:hunter2@collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "name=hunter2%0d%0ax: y"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ],
)
def test_what_cannot_work_is_named_without_its_value(variable: str, value: str) -> None:
    environ: dict[str, Any] = {ENDPOINT: "http://c:1", variable: value}
    with pytest.raises(InvalidField) as raised:
        OtelSettings.read(environ)
    assert raised.value.field == variable
    assert "hunter2" not in str(raised.value)


def test_a_sampler_s_argument_is_a_share() -> None:
    with pytest.raises(InvalidField, match="OTEL_TRACES_SAMPLER_ARG"):
        OtelSettings.read({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"})
