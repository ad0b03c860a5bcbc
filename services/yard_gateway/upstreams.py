"""The owners' internal HTTP: one kept-open client per owner, and what their answers become for people."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from opentelemetry.trace import SpanKind

from yard_gateway.principals import Principal
from yard_obs.catalogue import HTTP_METHOD, HTTP_STATUS, SERVER, URL_PATH
from yard_obs.tracing import current_trace, span
from yard_runtime.http import Problem, client_for

PRINCIPAL_HEADER = "X-Yard-Principal"
_STANDARD = frozenset({"type", "title", "status", "detail", "errors"})
QueryItems = Sequence[tuple[str, str]]


def away(owner: str) -> Problem:
    return Problem(
        503,
        "Service unavailable",
        f"The {owner} service does not answer at the moment. Try again shortly.",
        headers={"Retry-After": "1"},
        upstream=owner,
    )


class Upstreams:
    """`addresses`: owner → where its host listens; several instances are separated by commas. Close it with `close`."""

    def __init__(self, addresses: Mapping[str, str], *, token: str, timeout_seconds: float) -> None:
        self._clients = {
            owner: [
                client_for(address.strip(), token=token, timeout_seconds=timeout_seconds)
                for address in listed.split(",")
            ]
            for owner, listed in addresses.items()
        }

    async def call(
        self,
        owner: str,
        method: str,
        path: str,
        *,
        principal: Principal | None = None,
        query: QueryItems = (),
        body: Any = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """The JSON that `owner` answers at `/internal/<owner><path>`. `timeout_seconds` replaces the usual one.

        Raises Problem: the owner's own for a 4xx, 503 naming the owner when it is away, 502 when it fails.
        """
        headers = {PRINCIPAL_HEADER: principal.header()} if principal is not None else {}
        about = {HTTP_METHOD: method, SERVER: owner, URL_PATH: f"/internal/{owner}{path}"}
        with span(method, kind=SpanKind.CLIENT, attributes=about) as asking:
            response = await self._ask(
                owner,
                method,
                f"/internal/{owner}{path}",
                params=list(query),
                json=body,
                headers=headers | current_trace(),
                timeout=httpx.USE_CLIENT_DEFAULT if timeout_seconds is None else timeout_seconds,
            )
            asking.set_attribute(HTTP_STATUS, response.status_code)
        return _answer(owner, response)

    async def _ask(self, owner: str, method: str, url: str, **request: Any) -> httpx.Response:
        """Of the first instance that can be reached: one that was asked may have acted, so no other is asked then."""
        for client in self._clients.get(owner, ()):
            try:
                return await client.request(method, url, **request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except httpx.TransportError:
                break
        raise away(owner)

    async def close(self) -> None:
        for clients in self._clients.values():
            for client in clients:
                await client.aclose()


def _answer(owner: str, response: httpx.Response) -> Any:
    if response.status_code == 503:
        raise away(owner)
    try:
        value = response.json()
    except ValueError:
        value = None
    if response.is_success and value is not None:
        return value
    if response.status_code in (400, 404, 409, 410, 422) and isinstance(value, dict):
        problem: dict[str, Any] = value
        extra = {name: item for name, item in problem.items() if name not in _STANDARD}
        raise Problem(
            response.status_code,
            str(problem.get("title", "Refused")),
            str(problem.get("detail", "")),
            errors=problem.get("errors"),
            **extra,
        )
    # 401 and 403 too: the gateway had authorised, so the fault is not the caller's.
    raise Problem(502, "Bad gateway", f"The {owner} service failed to answer (status {response.status_code}).")
