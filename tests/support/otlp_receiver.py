"""A collector inside the test: real OTLP receivers, gRPC and HTTP, on loopback, in threads of their own.

Threads, because an exporter must get its answer while the test's event loop waits for something else.
"""

import asyncio
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids are hexadecimal; `parent_id` is empty for a root. `links`: (trace id, span id). Times in ns since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    resource: Mapping[str, Any]
    start_ns: int
    end_ns: int
    failed: bool

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


@dataclass(frozen=True)
class ReceivedPoint:
    """One point of a metric; of a histogram, `value` is how many measurements there were."""

    name: str
    kind: str
    unit: str
    attributes: Mapping[str, Any]
    value: float
    resource: Mapping[str, Any]


@dataclass
class OtlpReceiver:
    """`grpc` and `http` are endpoints for OTEL_EXPORTER_OTLP_ENDPOINT."""

    grpc: str = ""
    http: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    points: list[ReceivedPoint] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request."""
    away: bool = False
    """While it is, every request is refused as a collector that is overloaded does."""
    refused: int = 0
    _lock: Lock = field(default_factory=Lock)
    _waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(default_factory=list)

    async def until(self, enough: Callable[["OtlpReceiver"], bool], timeout_seconds: float = 20.0) -> None:
        """Raises TimeoutError, saying what there is instead."""
        changed = asyncio.Event()
        with self._lock:
            self._waiting.append((asyncio.get_running_loop(), changed))
        try:
            async with asyncio.timeout(timeout_seconds):
                while not enough(self):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            names = sorted({span.name for span in self.spans} | {point.name for point in self.points})
            raise TimeoutError(f"the collector has only {names}") from None
        finally:
            with self._lock:
                self._waiting.remove((asyncio.get_running_loop(), changed))

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def of_trace(self, trace_id: str) -> list[ReceivedSpan]:
        """In the order in which they began."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)

    def took_spans(self, received: Iterable[ResourceSpans], headers: Iterable[tuple[str, Any]]) -> None:
        found = [span for resource in received for span in _spans(resource)]
        self._took(lambda: self.spans.extend(found), headers)

    def took_metrics(self, received: Iterable[ResourceMetrics], headers: Iterable[tuple[str, Any]]) -> None:
        found = [point for resource in received for point in _points(resource)]
        self._took(lambda: self.points.extend(found), headers)

    def refuse(self) -> None:
        with self._lock:
            self.refused += 1
        self._tell()

    def _took(self, keep: Callable[[], None], headers: Iterable[tuple[str, Any]]) -> None:
        with self._lock:
            self.headers.append({name.lower(): str(value) for name, value in headers})
            keep()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, changed in waiting:
            loop.call_soon_threadsafe(changed.set)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=2, thread_name_prefix="otlp-grpc"))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
    receiver.grpc = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), _handler(receiver))
    receiver.http = f"http://127.0.0.1:{web.server_address[1]}"
    serving = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, name="otlp-http", daemon=True)
    serving.start()
    try:
        yield receiver
    finally:
        web.shutdown()
        web.server_close()
        serving.join()
        server.stop(grace=None).wait()


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        if self._receiver.away:
            self._receiver.refuse()
            context.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")
        self._receiver.took_spans(request.resource_spans, context.invocation_metadata())
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        if self._receiver.away:
            self._receiver.refuse()
            context.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")
        self._receiver.took_metrics(request.resource_metrics, context.invocation_metadata())
        return metrics_pb.ExportMetricsServiceResponse()


def _handler(receiver: OtlpReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.away:
                receiver.refuse()
                self._answer(503, b"")
            elif self.headers.get("content-type") != "application/x-protobuf":
                self._answer(415, b"")
            elif self.path == "/v1/traces":
                request = trace_pb.ExportTraceServiceRequest.FromString(body)
                receiver.took_spans(request.resource_spans, self.headers.items())
                self._answer(200, trace_pb.ExportTraceServiceResponse().SerializeToString())
            elif self.path == "/v1/metrics":
                posted = metrics_pb.ExportMetricsServiceRequest.FromString(body)
                receiver.took_metrics(posted.resource_metrics, self.headers.items())
                self._answer(200, metrics_pb.ExportMetricsServiceResponse().SerializeToString())
            else:
                self._answer(404, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Silence: the tests look at what arrived."""

    return Handler


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return getattr(value, which) if which is not None else None


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _spans(received: ResourceSpans) -> Iterator[ReceivedSpan]:
    resource = _attributes(received.resource.attributes)
    for scope in received.scope_spans:
        for span in scope.spans:
            yield _span(span, resource)


def _span(span: Span, resource: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=_KINDS[span.kind],
        attributes=_attributes(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        resource=resource,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _points(received: ResourceMetrics) -> Iterator[ReceivedPoint]:
    resource = _attributes(received.resource.attributes)
    for scope in received.scope_metrics:
        for metric in scope.metrics:
            kind = str(metric.WhichOneof("data"))
            for point in getattr(metric, kind).data_points:
                yield ReceivedPoint(
                    metric.name, kind, metric.unit, _attributes(point.attributes), _amount(metric, point), resource
                )


def _amount(metric: Metric, point: Any) -> float:
    if metric.WhichOneof("data") == "histogram":
        return float(point.count)
    return float(getattr(point, point.WhichOneof("value")))
