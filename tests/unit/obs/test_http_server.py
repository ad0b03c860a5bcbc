"""One span and one measurement per request, whatever becomes of the answer."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.trace import SpanKind, StatusCode

from support.traces import REQUEST, Spans, span_id, trace_id
from yard_obs.catalogue import check_span
from yard_obs.http_server import ObservedHttp
from yard_obs.metrics import Metrics
from yard_obs.tracing import acting_service, current_trace

Message = MutableMapping[str, Any]


class Application:
    """Answers with `status`, and then may go on or fail."""

    def __init__(self, status: int | None = 200, route: str | None = "/v1/jobs/{job_id}") -> None:
        self.status = status
        self.route = route
        self.seen: dict[str, str] = {}
        self.service: str | None = None
        self.after_start: Any = lambda: None

    async def __call__(self, scope: Message, _receive: Any, send: Any) -> None:
        self.seen = current_trace()
        self.service = acting_service()
        if self.route is not None:
            scope["route"] = type("Route", (), {"path": self.route})
        if self.status is None:
            raise RuntimeError("broken")
        await send({"type": "http.response.start", "status": self.status})
        self.after_start()
        await send({"type": "http.response.body", "body": b""})


class Bench:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.metrics = Metrics(MeterProvider([self._reader], shutdown_on_exit=False).get_meter("tests"))

    async def call(self, app: Application, path: str = "/v1/jobs/j", **scope: Any) -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing is read here")

        whole = {"type": "http", "method": "GET", "path": path, "headers": [], **scope}
        await ObservedHttp(app, metrics=self.metrics, service="gateway")(whole, receive, send)
        return sent

    def measured(self) -> list[tuple[str, str, int]]:
        data = self._reader.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        found: list[tuple[str, str, int]] = []
        for point in points:
            assert isinstance(point, HistogramDataPoint)
            labels: Any = point.attributes
            found += [
                (labels["http.request.method"], labels["http.route"], labels["http.response.status_code"])
            ] * point.count
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans.recorded(monkeypatch)


def _headers(trace: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in trace.items()]


async def test_a_request_is_a_server_span_named_by_its_route(bench: Bench, spans: Spans) -> None:
    app = Application(201)
    await bench.call(app, method="POST", query_string=b"token=secret")
    [span] = spans.all()
    assert (span.name, span.kind) == ("POST /v1/jobs/{job_id}", SpanKind.SERVER)
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/jobs/{job_id}",
        "http.response.status_code": 201,
        "url.path": "/v1/jobs/j",
    }
    check_span(span.name, "server", span.attributes or {})
    assert span.parent is None
    assert span.context is not None
    assert span_id(app.seen) == format(span.context.span_id, "016x")
    assert app.service == "gateway"
    assert bench.measured() == [("POST", "/v1/jobs/{job_id}", 201)]


async def test_it_continues_its_caller_s_trace(bench: Bench, spans: Spans) -> None:
    await bench.call(Application(), headers=_headers(REQUEST))
    [span] = spans.all()
    assert span.parent is not None
    assert (format(span.parent.trace_id, "032x"), format(span.parent.span_id, "016x")) == (
        trace_id(REQUEST),
        span_id(REQUEST),
    )


@pytest.mark.parametrize("nonsense", ["", "00-1-2-3", f"00-{'g' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01"])
async def test_nonsense_in_place_of_a_trace_begins_a_new_one(bench: Bench, spans: Spans, nonsense: str) -> None:
    await bench.call(Application(), headers=[(b"traceparent", nonsense.encode())])
    [span] = spans.all()
    assert span.parent is None


@pytest.mark.parametrize(
    ("status", "failed", "error"), [(404, False, None), (499, False, None), (500, True, "500"), (503, True, "503")]
)
async def test_only_our_own_failures_are_errors(
    bench: Bench, spans: Spans, status: int, failed: bool, error: str | None
) -> None:
    await bench.call(Application(status))
    [span] = spans.all()
    assert (span.status.status_code is StatusCode.ERROR) == failed
    assert (span.attributes or {}).get("error.type") == error


async def test_an_application_that_breaks_is_a_500(bench: Bench, spans: Spans) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await bench.call(Application(status=None))
    [span] = spans.all()
    assert (span.attributes or {})["http.response.status_code"] == 500
    assert not span.events, "an exception's text does not belong into a trace"
    assert bench.measured() == [("GET", "/v1/jobs/{job_id}", 500)]


async def test_a_stream_s_span_ends_when_its_answer_begins(bench: Bench, spans: Spans) -> None:
    app = Application()
    while_streaming: list[int] = []
    app.after_start = lambda: while_streaming.append(len(spans.all()))
    sent = await bench.call(app)
    assert while_streaming == [1]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert len(spans.all()) == len(bench.measured()) == 1


@pytest.mark.parametrize(
    ("scope", "name", "measured"),
    [
        ({"method": "BREW"}, "HTTP /v1/jobs/{job_id}", ("_OTHER", "/v1/jobs/{job_id}", 200)),
        (
            {"root_path": "/internal/admission"},
            "GET /internal/admission/v1/jobs/{job_id}",
            ("GET", "/internal/admission/v1/jobs/{job_id}", 200),
        ),
    ],
)
async def test_names_come_from_us_and_not_from_callers(
    bench: Bench, spans: Spans, scope: dict[str, Any], name: str, measured: tuple[str, str, int]
) -> None:
    await bench.call(Application(), **scope)
    assert [span.name for span in spans.all()] == [name]
    check_span(name, "server", spans.all()[0].attributes or {})
    assert bench.measured() == [measured]


async def test_a_path_that_no_route_knows_is_no_name(bench: Bench, spans: Spans) -> None:
    await bench.call(Application(404, route=None), path="/wp-login.php")
    assert [span.name for span in spans.all()] == ["GET"]
    assert bench.measured() == [("GET", "", 404)]


async def test_probes_leave_nothing(bench: Bench, spans: Spans) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        await bench.call(Application(), path=path)
    assert (list(spans.all()), bench.measured()) == ([], [])


async def test_without_telemetry_a_caller_s_trace_still_travels(bench: Bench) -> None:
    app = Application()
    await bench.call(app, headers=_headers(REQUEST))
    assert app.seen == REQUEST
    await bench.call(app)
    assert app.seen == {}
    assert len(bench.measured()) == 2
