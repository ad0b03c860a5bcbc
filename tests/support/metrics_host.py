"""An application that serves a process's /metrics, as a host mounts it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from yard_obs.telemetry import Telemetry
from yard_runtime.host import server_for
from yard_runtime.http import install_problem_handlers
from yard_runtime.metrics_endpoint import metrics_route


@asynccontextmanager
async def serving_metrics(telemetry: Telemetry, *tokens: str) -> AsyncIterator[str]:
    """Its address, as `host:port`."""
    app = FastAPI()
    install_problem_handlers(app)
    app.include_router(metrics_route(telemetry, tokens=list(tokens)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        server = server_for(app, address)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield address
        finally:
            server.should_exit = True
            await serving
