"""What the standard OTEL_* variables say, read once. Values that are secrets appear in no error and no repr.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from yard_domain.errors import InvalidField

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAMPLERS = ("always_on", "always_off", "traceidratio")


class Protocol(StrEnum):
    GRPC = "grpc"
    HTTP = "http/protobuf"


class Signal(StrEnum):
    TRACES = "traces"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one signal goes. `endpoint` is whole: for HTTP with its path."""

    signal: Signal
    protocol: Protocol
    endpoint: str
    timeout_seconds: float
    headers: Mapping[str, str] = field(repr=False, hash=False)

    @property
    def address(self) -> str:
        """The collector's host and port, for people."""
        return urlsplit(self.endpoint).netloc or self.endpoint


@dataclass(frozen=True, slots=True)
class Sampling:
    """`ratio` of new traces, 0 to 1; `parent_based`: what a caller began is sampled as the caller decided."""

    ratio: float = 1.0
    parent_based: bool = True


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """`service_name`: what the operator calls this process, whatever runs in it; None when nothing is said."""

    traces: Target | None
    metrics: Target | None
    sampling: Sampling
    service_name: str | None
    resource: Mapping[str, str]
    queue_spans: int = 2048
    batch_spans: int = 512
    span_delay_ms: float = 5000.0
    metric_interval_ms: float = 60_000.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "OtelSettings":
        """Raises InvalidField naming the variable that cannot work."""
        resource = _pairs(environ, "OTEL_RESOURCE_ATTRIBUTES")
        on = environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        queue = int(_positive(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048))
        return cls(
            traces=_target(environ, Signal.TRACES) if on else None,
            metrics=_target(environ, Signal.METRICS) if on else None,
            sampling=_sampling(environ),
            service_name=environ.get("OTEL_SERVICE_NAME", "").strip() or resource.get("service.name"),
            resource=resource,
            queue_spans=queue,
            batch_spans=min(queue, int(_positive(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512))),
            span_delay_ms=_positive(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000.0),
            metric_interval_ms=_positive(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000.0),
        )

    def secrets(self) -> frozenset[str]:
        """Header values: what must never be printed."""
        targets = [target for target in (self.traces, self.metrics) if target is not None]
        return frozenset(value for target in targets for value in target.headers.values() if value)


def _target(environ: Mapping[str, str], signal: Signal) -> Target | None:
    """None when the signal is not exported: no endpoint, or its exporter is another one than OTLP."""
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
    if exporter not in ("otlp", "none", "prometheus"):
        raise InvalidField(f"OTEL_{signal.upper()}_EXPORTER", "must be otlp or none; /metrics is always there")
    variable, endpoint = _of_signal(environ, signal, "ENDPOINT")
    if exporter != "otlp" or not endpoint:
        return None
    _, named = _of_signal(environ, signal, "PROTOCOL")
    try:
        protocol = Protocol(named or Protocol.HTTP)
    except ValueError:
        raise InvalidField("OTEL_EXPORTER_OTLP_PROTOCOL", f"must be {' or '.join(Protocol)}") from None
    _check_endpoint(variable, endpoint)
    if protocol is Protocol.HTTP and variable == "OTEL_EXPORTER_OTLP_ENDPOINT":
        endpoint = f"{endpoint.rstrip('/')}/v1/{signal}"
    headers_of, _ = _of_signal(environ, signal, "HEADERS")
    timeout_of, _ = _of_signal(environ, signal, "TIMEOUT")
    return Target(signal, protocol, endpoint, _positive(environ, timeout_of, 10.0), _headers(environ, headers_of))


def _of_signal(environ: Mapping[str, str], signal: Signal, what: str) -> tuple[str, str]:
    """The variable that counts, the signal's own before the one for all, and its value."""
    own, shared = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"
    value = environ.get(own, "").strip()
    return (own, value) if value else (shared, environ.get(shared, "").strip())


def _check_endpoint(variable: str, endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise InvalidField(variable, "is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidField(variable, "must be http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidField(variable, "must not hold credentials; they belong into OTEL_EXPORTER_OTLP_HEADERS")


def _headers(environ: Mapping[str, str], variable: str) -> dict[str, str]:
    headers = {name.lower(): value for name, value in _pairs(environ, variable).items()}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise InvalidField(variable, "must be name=value,name=value with printable, URL-encoded values")
    return headers


def _pairs(environ: Mapping[str, str], variable: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in environ.get(variable, "").split(","):
        name, equals, value = item.partition("=")
        if not item.strip():
            continue
        if not equals or not name.strip():
            raise InvalidField(variable, "must be name=value,name=value")
        found[unquote(name.strip())] = unquote(value.strip())
    return found


def _positive(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise InvalidField(variable, "must be a number above 0")
    return value


def _sampling(environ: Mapping[str, str]) -> Sampling:
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_always_on"
    kind = name.removeprefix("parentbased_")
    if kind not in _SAMPLERS:
        allowed = ", ".join([*_SAMPLERS, *(f"parentbased_{sampler}" for sampler in _SAMPLERS)])
        raise InvalidField("OTEL_TRACES_SAMPLER", f"must be one of {allowed}")
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
    if ratio is None:
        text = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
        try:
            ratio = float(text) if text else 1.0
        except ValueError:
            ratio = -1.0
        if not 0 <= ratio <= 1:
            raise InvalidField("OTEL_TRACES_SAMPLER_ARG", "must be a number from 0 to 1")
    return Sampling(ratio, parent_based=name != kind)
