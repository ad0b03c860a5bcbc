"""HTTP shared by all services: problem+json, listening addresses, the internal token."""

import hmac
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from yard_domain.errors import Conflict, InvalidField, Retryable

PROBLEM_JSON = "application/problem+json"


class Problem(Exception):
    """An answer in the form of RFC 9457. `errors` lists `{field, message}` for bad input."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str = "",
        *,
        errors: list[dict[str, str]] | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
        if detail:
            self.body["detail"] = detail
        if errors:
            self.body["errors"] = errors
        self.body.update(extra)

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, headers=self.headers, media_type=PROBLEM_JSON)


def field_errors(errors: list[Any], prefix: str = "") -> list[dict[str, str]]:
    """pydantic's errors as `{field, message}`, in dotted paths."""
    found: list[dict[str, str]] = []
    for error in errors:
        path = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
        message = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = "unknown field; this version does not have it"
        found.append({"field": f"{prefix}{path}" or "(document)", "message": message})
    return found


def unavailable(error: Retryable) -> Problem:
    return Problem(503, "Service unavailable", f"{error}. Try again shortly.", headers={"Retry-After": "1"})


def install_problem_handlers(app: FastAPI) -> None:
    """One table from errors to answers."""

    async def problem(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return error.response()

    async def retryable(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Retryable)
        return unavailable(error).response()

    async def conflict(_request: Request, error: Exception) -> JSONResponse:
        return Problem(409, "Conflict", str(error)).response()

    async def invalid_field(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, InvalidField)
        item = {"field": error.field, "message": error.message}
        return Problem(422, "Invalid request", str(error), errors=[item]).response()

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError | ValidationError)
        items = field_errors(list(error.errors()))
        detail = "; ".join(f"{item['field']}: {item['message']}" for item in items[:5])
        return Problem(422, "Invalid request", detail, errors=items).response()

    async def http_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        return Problem(error.status_code, str(error.detail), headers=headers).response()

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(Retryable, retryable)
    app.add_exception_handler(Conflict, conflict)
    app.add_exception_handler(InvalidField, invalid_field)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)


class InternalOnly:
    """ASGI middleware that lets only the gateway in: owners' HTTP is not for people.

    Not a dependency: FastAPI applies those only to routes that are made after them, and services make their own.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_internal(Headers(scope=scope).get("authorization", ""), self._token):
            await _not_for_people().response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_internal(authorization: str, token: str) -> bool:
    return hmac.compare_digest(authorization.removeprefix("Bearer ").encode(), token.encode())


def _not_for_people() -> Problem:
    return Problem(401, "Unauthorized", "This address serves gpuyard's own services; use the gateway.")


def node_token(internal_token: str, node: str) -> str:
    """The token for one node's agent: knowing it opens that agent's log port and nothing else."""
    return hmac.new(internal_token.encode(), f"node:{node}".encode(), "sha256").hexdigest()


def client_for(address: str, *, token: str | None = None, timeout_seconds: float | None = 10.0) -> httpx.AsyncClient:
    """An HTTP client for `unix:/path/of.sock`, `host:port` or `http(s)://…`."""
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    if address.startswith("unix:"):
        transport = httpx.AsyncHTTPTransport(uds=address.removeprefix("unix:"))
        return httpx.AsyncClient(
            transport=transport, base_url="http://gpuyard.internal", headers=headers, timeout=timeout_seconds
        )
    url = address if "://" in address else f"http://{address}"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_seconds)
