"""A task's output, fetched from its node's agent and passed on byte for byte."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx

from yard_runtime.http import Problem, node_token

OFFSET_HEADER = "X-Yard-Offset"
_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=32)
"""How many streams may be open is the feed's decision; here a limit would only look like an agent that is away."""


class OpenLog:
    """An answer of an agent, its headers read, its body not. `close` it."""

    def __init__(self, response: httpx.Response, offset: int) -> None:
        self._response = response
        self.offset = int(response.headers.get(OFFSET_HEADER, offset))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they come. An agent that dies ends this with httpx.TransportError, so that the caller's own
        answer breaks off instead of looking complete."""
        async for chunk in self._response.aiter_raw():
            yield chunk

    async def close(self) -> None:
        await self._response.aclose()


class AgentLogs:
    """Clients of the agents: one for all that listen on TCP, one per unix socket. Close it with `close`."""

    def __init__(self, *, internal_token: str, timeout_seconds: float) -> None:
        self._internal_token = internal_token
        self._timeout_seconds = timeout_seconds
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def open(self, *, agent_url: str, node: str, allocation_id: str, offset: int, follow: bool) -> OpenLog | None:
        """The output of one allocation from byte `offset` on; None when the agent has none.

        Raises Problem 503 naming the node when its agent does not answer.
        """
        if not agent_url:
            raise unreachable(node)
        client, base = self._client(agent_url)
        read = None if follow else self._timeout_seconds
        request = client.build_request(
            "GET",
            f"{base}/v1/nodes/{quote(node, safe='')}/allocations/{quote(allocation_id, safe='')}/log",
            params={"offset": offset, "follow": "true" if follow else "false"},
            headers={
                "authorization": f"Bearer {node_token(self._internal_token, node)}",
                "accept-encoding": "identity",
            },
            timeout=httpx.Timeout(self._timeout_seconds, read=read),
        )
        try:
            response = await client.send(request, stream=True)
        except httpx.TransportError:
            raise unreachable(node) from None
        if response.status_code == 200:
            return OpenLog(response, offset)
        await response.aclose()
        if response.status_code == 404:
            return None
        if response.status_code == 416:
            raise Problem(
                422,
                "Invalid request",
                "offset: beyond the end of the output",
                errors=[{"field": "offset", "message": "beyond the end of the output"}],
            )
        raise unreachable(node)

    def _client(self, agent_url: str) -> tuple[httpx.AsyncClient, str]:
        """The client and the base URL that reach this agent."""
        if agent_url.startswith("unix:"):
            key, base = agent_url, "http://agent.internal"
        else:
            key, base = "tcp", agent_url.rstrip("/") if "://" in agent_url else f"http://{agent_url}"
        client = self._clients.get(key)
        if client is None:
            path = agent_url.removeprefix("unix:") if key != "tcp" else None
            client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path, limits=_UNLIMITED))
            self._clients[key] = client
        return client, base

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()


def unreachable(node: str) -> Problem:
    return Problem(
        503,
        "Service unavailable",
        f"The agent of node {node!r} does not answer at the moment, so its output cannot be read. Try again shortly.",
        headers={"Retry-After": "2"},
        node=node,
    )
