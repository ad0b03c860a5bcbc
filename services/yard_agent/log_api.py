"""The agent's HTTP: the output of its tasks, for the gateway."""

import hmac
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse

from yard_agent.node_agent import NodeAgent
from yard_agent.output import follow, read
from yard_runtime.http import Problem, install_problem_handlers, node_token

_CHUNK_BYTES = 256 * 1024
_OCTETS = "application/octet-stream"


def build_log_api(agents: Mapping[str, NodeAgent], internal_token: str) -> FastAPI:
    """One app for all nodes of this process; each node has a token of its own."""
    app = FastAPI(title="agent", openapi_url=None, docs_url=None, redoc_url=None)
    install_problem_handlers(app)

    def agent_of(request: Request, node: str) -> NodeAgent:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), node_token(internal_token, node).encode()):
            raise Problem(401, "Unauthorized", "This address serves gpuyard's gateway.")
        if node not in agents:
            raise Problem(404, "No such node", f"This agent does not serve {node!r}.")
        return agents[node]

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/v1/nodes/{node}/allocations/{allocation_id}/log")
    async def log(
        request: Request,
        node: str,
        allocation_id: str,
        offset: Annotated[int, Query(ge=0)] = 0,
        tail: Annotated[bool, Query(alias="follow")] = False,
    ) -> Response:
        """The task's output from `offset` on, byte for byte; with `follow` until nothing writes it any more."""
        agent = agent_of(request, node)
        if agent.journal.allocation(allocation_id) is None:
            raise Problem(404, "No such allocation", f"{node} does not know {allocation_id!r}.")
        path = agent.output_path(allocation_id)
        headers = {"X-Yard-Offset": str(offset)}
        if tail:
            stream = follow(path, offset, agent.facts.emptied(allocation_id))
            return StreamingResponse(stream, media_type=_OCTETS, headers=headers)

        async def all_there_is() -> AsyncIterator[bytes]:
            at = offset
            while data := read(path, at, _CHUNK_BYTES):
                at += len(data)
                yield data

        return StreamingResponse(all_there_is(), media_type=_OCTETS, headers=headers)

    return app
