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
    """`addresses`: owner → where its host listens. Close it with `close`."""

    def __init__(self, addresses: Mapping[str, str], *, token: str, timeout_seconds: float) -> None:
        self._clients = {
            owner: client_for(address, token=token, timeout_seconds=timeout_seconds)
            for owner, address in addresses.items()
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
        client = self._clients.get(owner)
        if client is None:
            raise away(owner)
        headers = {PRINCIPAL_HEADER: principal.header()} if principal is not None else {}
        about = {HTTP_METHOD: method, SERVER: owner, URL_PATH: f"/internal/{owner}{path}"}
        with span(method, kind=SpanKind.CLIENT, attributes=about) as asking:
            try:
                response = await client.request(
                    method,
                    f"/internal/{owner}{path}",
                    params=list(query),
                    json=body,
                    headers=headers | current_trace(),
                    timeout=client.timeout if timeout_seconds is None else timeout_seconds,
                )
            except httpx.TransportError:
                raise away(owner) from None
            asking.set_attribute(HTTP_STATUS, response.status_code)
        return _answer(owner, response)

    async def close(self) -> None:
        for client in self._clients.values():
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
