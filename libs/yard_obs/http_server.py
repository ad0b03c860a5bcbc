"""Requests that we serve: a span each, and how long they took. Plain ASGI, so that any application can be wrapped.

Both end when the answer begins. What follows its first byte is sent at once, except by streams of events and output,
which go on for as long as somebody looks and say nothing about how fast we answer.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from yard_obs.catalogue import (
    ERROR_TYPE,
    HTTP_METHOD,
    HTTP_ROUTE,
    HTTP_SERVER_DURATION,
    HTTP_STATUS,
    URL_PATH,
)
from yard_obs.metrics import Histogram, Metrics
from yard_obs.tracing import acting_as, carried_trace, current, open_span, recording

_Scope = MutableMapping[str, Any]
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: their spans would only hide the others."""


class ObservedHttp:
    """ASGI middleware. What happens inside of it is `service`'s; a caller's `traceparent` is continued."""

    def __init__(self, app: _App, *, metrics: Metrics, service: str) -> None:
        self._app = app
        self._duration = metrics.histogram(HTTP_SERVER_DURATION)
        self._service = service

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        with acting_as(self._service):
            parent = _caller(scope)
            method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
            if parent is None and not recording():
                await self._serve(_Exchange(scope, method, self._duration, None), scope, receive, send)
                return
            span = open_span(
                method if method in _METHODS else "HTTP",
                kind=SpanKind.SERVER,
                parent=parent,
                attributes={HTTP_METHOD: method, URL_PATH: scope["path"]},
            )
            with current(span):
                await self._serve(_Exchange(scope, method, self._duration, span), scope, receive, send)

    async def _serve(self, exchange: "_Exchange", scope: _Scope, receive: _Receive, send: _Send) -> None:
        async def watched(message: _Message) -> None:
            if message["type"] == "http.response.start":
                exchange.end(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            exchange.end(500)  # nothing was answered: whoever serves us answers with that


class _Exchange:
    """One request until its answer begins."""

    __slots__ = ("_duration", "_ended", "_method", "_scope", "_span", "_started")

    def __init__(self, scope: _Scope, method: str, duration: Histogram, span: Span | None) -> None:
        self._started = perf_counter()
        self._scope = scope
        self._method = method
        self._duration = duration
        self._span = span
        self._ended = False

    def end(self, status: int) -> None:
        if self._ended:
            return
        self._ended = True
        found = getattr(self._scope.get("route"), "path", None)
        route = f"{self._scope.get('root_path', '')}{found}" if found is not None else ""
        self._duration.record(
            perf_counter() - self._started,
            **{HTTP_METHOD: self._method, HTTP_ROUTE: route, HTTP_STATUS: status},
        )
        if self._span is not None and self._span.is_recording():
            self._span.set_attribute(HTTP_STATUS, status)
            if route:
                self._span.set_attribute(HTTP_ROUTE, route)
                self._span.update_name(f"{self._method if self._method in _METHODS else 'HTTP'} {route}")
            if status >= 500:
                self._span.set_attribute(ERROR_TYPE, str(status))
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()


def _caller(scope: _Scope) -> dict[str, str] | None:
    """The trace context that the request carries."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in (b"traceparent", b"tracestate"):
            headers[name.decode()] = value.decode("latin-1")
    return carried_trace(headers) if headers else None
