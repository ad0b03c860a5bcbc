"""`/metrics`, for Prometheus: the process's metrics as they are when it asks."""

import asyncio
import hmac
from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from yard_obs.telemetry import Telemetry
from yard_runtime.http import Problem


def metrics_route(telemetry: Telemetry, *, tokens: Sequence[str]) -> APIRouter:
    """GET /metrics for whoever holds one of the tokens: the internal one, or one that opens nothing else, which is what
    a Prometheus should have (`authorization: {credentials_file: …}`)."""
    known = [token.encode() for token in tokens if token]

    async def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Every token is compared, so that the time taken does not tell which one was nearly right.
        matches = [hmac.compare_digest(given.strip().encode(), token) for token in known]
        if scheme.lower() != "bearer" or not any(matches):
            raise Problem(401, "Unauthorized", "Metrics need a bearer token.", headers={"WWW-Authenticate": "Bearer"})

    router = APIRouter(dependencies=[Depends(check)])

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        content, content_type = await asyncio.to_thread(telemetry.prometheus, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    return router
