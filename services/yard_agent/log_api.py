"""The agent's HTTP: the output of its tasks, for the gateway."""

import asyncio
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
        """The task's output from `offset` on, byte for byte; with `follow` until nothing writes it any more.

        416: the output ends before `offset`, and nothing can grow it up to there while somebody waits.
        """
        agent = agent_of(request, node)
        # An id that the journal holds is a plain name; no other comes near the file system.
        if agent.journal.allocation(allocation_id) is None:
            raise Problem(404, "No such allocation", f"{node} does not know {allocation_id!r}.")
        path, size = agent.files.output(allocation_id), agent.files.output_bytes(allocation_id)
        headers = {"X-Yard-Offset": str(offset)}
        emptied = agent.facts.emptied(allocation_id)
        if offset > size and (emptied.is_set() or not tail):
            raise Problem(416, "Range not satisfiable", f"offset: the output ends at {size}.", output_bytes=size)
        stream = follow(path, offset, emptied) if tail else _up_to(path, offset, size)
        return StreamingResponse(stream, media_type=_OCTETS, headers=headers)

    return app


async def _up_to(path: str, offset: int, size: int) -> AsyncIterator[bytes]:
    """What there is at this moment: a task that prints faster than somebody reads must not make the answer endless."""
    while offset < size and (data := read(path, offset, min(_CHUNK_BYTES, size - offset))):
        offset += len(data)
        yield data
        await asyncio.sleep(0)  # a reader that left is only noticed by a loop that gets its turn
