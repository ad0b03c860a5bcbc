"""The host of services: one process, some services, one internal HTTP listener, one way to stop."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from yard_obs.http_server import ObservedHttp
from yard_obs.metrics import no_metrics
from yard_obs.telemetry import Telemetry
from yard_obs.tracing import acting_as
from yard_runtime.http import InternalOnly, install_problem_handlers
from yard_runtime.metrics_endpoint import metrics_route
from yard_runtime.service import ReportsProblems, Service

_log = structlog.get_logger("yard.host")


class QuietServer(uvicorn.Server):
    """A uvicorn server inside an event loop of ours: signals belong to the host, and so do Unix sockets."""

    def __init__(self, config: uvicorn.Config, unix_path: Path | None = None) -> None:
        super().__init__(config)
        self._unix_path = unix_path

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        if self._unix_path is not None:
            sockets = [_private_socket(self._unix_path)]
        await super().serve(sockets)

    def install_signal_handlers(self) -> None:
        return None

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _private_socket(path: Path) -> socket.socket:
    """Listens at `path` for its owner alone; uvicorn's own would let everybody in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening


def server_for(app: FastAPI, listen: str, *, graceful_seconds: int = 2) -> QuietServer:
    """A server for `unix:/path` or `host:port`. A unix socket is made for its owner only."""
    where: dict[str, object] = {}
    unix_path: Path | None = None
    if listen.startswith("unix:"):
        unix_path = Path(listen.removeprefix("unix:"))
    else:
        host, _, port = listen.rpartition(":")
        where = {"host": host.strip("[]"), "port": int(port)}
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=graceful_seconds,
        h11_max_incomplete_event_size=64 * 1024,
        **where,  # type: ignore[arg-type]
    )
    return QuietServer(config, unix_path)


class ServiceHost:
    """Runs services until SIGTERM or SIGINT; the first failure of one stops all, with its name and cause."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        listen: str,
        internal_token: str,
        telemetry: Telemetry | None = None,
        metrics_token: str = "",
    ) -> None:
        """`metrics_token` opens `/metrics` and nothing else; empty: only the internal token does."""
        self._services = services
        self._telemetry = telemetry
        self._metrics_token = metrics_token
        self._listen = listen
        self._token = internal_token
        self._ready: set[str] = set()

    async def run(self) -> None:
        """Serve until told to stop. Raises the first service's failure."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        os.umask(0o077)
        server = server_for(self._app(), self._listen)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(), name="internal http")
            running = [group.create_task(self._run(service), name=service.name) for service in self._services]
            await stop.wait()
            _log.info("stopping", services=[service.name for service in self._services])
            for task in running:
                task.cancel()
            server.should_exit = True
            await asyncio.gather(*running, return_exceptions=True)
            await serving

    async def _run(self, service: Service) -> None:
        try:
            with acting_as(service.name):
                await service.run(lambda: self._ready.add(service.name))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.error("service died", service=service.name, exc_info=error)
            raise
        raise RuntimeError(f"{service.name} returned")

    def _app(self) -> FastAPI:
        app = FastAPI(title="gpuyard internal", openapi_url=None, docs_url=None, redoc_url=None)
        install_problem_handlers(app)

        @app.get("/healthz")
        async def healthz() -> dict[str, str]:
            return {"status": "alive"}

        @app.get("/readyz")
        async def readyz() -> JSONResponse:
            waiting = sorted(service.name for service in self._services if service.name not in self._ready)
            problems = {
                service.name: list(found)
                for service in self._services
                if isinstance(service, ReportsProblems) and (found := service.problems())
            }
            unwell = bool(waiting or problems)
            return JSONResponse({"waiting_for": waiting, "problems": problems}, 503 if unwell else 200)

        telemetry = self._telemetry
        if telemetry is not None:
            app.include_router(metrics_route(telemetry, tokens=[self._token, self._metrics_token]))
        for service in self._services:
            api = service.api()
            if api is not None:
                install_problem_handlers(api)
                guarded = InternalOnly(api, self._token)
                metrics = no_metrics() if telemetry is None else telemetry.metrics
                app.mount(f"/internal/{service.name}", ObservedHttp(guarded, metrics=metrics, service=service.name))
        return app
