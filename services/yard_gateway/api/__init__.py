"""The public API: `create_app`."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yard_domain.errors import Retryable
from yard_gateway.api import access, dead_letters, fleet, jobs, streams, system
from yard_gateway.api.described import DESCRIPTION, schemas
from yard_gateway.api.parts import Parts
from yard_obs.http_server import ObservedHttp
from yard_obs.metrics import Metrics
from yard_runtime.http import Problem, install_problem_handlers

VERSION = "1"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
}


class _SecurityHeaders:
    """On every answer. Nothing here may be cached, framed or taken for another type; CORS is off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def create_app(parts: Parts | None = None, metrics: Metrics | None = None) -> FastAPI:
    """The public application. Without parts it only describes itself: `create_app().openapi()`."""
    app = FastAPI(title="gpuyard", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.parts = parts
    install_problem_handlers(app)
    app.add_exception_handler(Retryable, _database_away)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(_SecurityHeaders)
    if metrics is not None:
        app.add_middleware(ObservedHttp, metrics=metrics, service="gateway")
    for module in (jobs, streams, fleet, dead_letters, access, system):
        app.include_router(module.router)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


async def _database_away(_request: Request, error: Exception) -> JSONResponse:
    """Without the error's text: it may name hosts and addresses."""
    detail = "The gateway cannot store or read at the moment; nothing was done by halves. Try again shortly."
    return Problem(503, "Service unavailable", detail, headers={"Retry-After": "1"}).response()


async def _failed(_request: Request, _error: Exception) -> JSONResponse:
    response = Problem(500, "Internal server error", "The gateway failed; its log says why.").response()
    response.headers.update(_HEADERS)
    return response


def _describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        app.openapi_schema = document
    return app.openapi_schema
