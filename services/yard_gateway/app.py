"""The gateway's composition root, and the service: public HTTP, the consumer, the writer of submissions."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from fastapi import FastAPI

from yard_events.dead_letters import SERVICE_OF_TOPIC
from yard_events.registry import INVENTORY_STATE, JOBS_EVENTS, QUEUES_STATE
from yard_gateway.agent_logs import AgentLogs
from yard_gateway.api import create_app
from yard_gateway.api.parts import Parts
from yard_gateway.cycle import SCOPE, Retention
from yard_gateway.database import Reads
from yard_gateway.directory import Directory
from yard_gateway.feed import JOB_NEWS, Feed
from yard_gateway.handlers import ReadModelHandlers
from yard_gateway.http_protocol import limited_protocol
from yard_gateway.parked_jobs import dead_letters
from yard_gateway.settings import GatewaySettings
from yard_gateway.submissions import SubmitBatcher
from yard_gateway.tables import SCHEMA, TABLES
from yard_gateway.tokens import Authenticator, install_bootstrap
from yard_gateway.upstreams import Upstreams
from yard_obs.metrics import Metrics
from yard_runtime.dead_letters_api import DeadLetters
from yard_runtime.host import server_for
from yard_runtime.service import CONSUMER, EventService, Runtime
from yard_store.migrations import migrate

_log = structlog.get_logger("yard.gateway")


class GatewayService:
    """Implements `yard_runtime.service.Service`.

    The public HTTP does not depend on the consumer: while the database is away the consumer begins again and again, and
    HTTP answers 503. `address` is where HTTP listens, known once `run` has begun.
    """

    name = "gateway"

    def __init__(self, parts: Parts, consumer: EventService, active: asyncio.Event, metrics: Metrics) -> None:
        self.parts = parts
        self.address: str | None = None
        self._consumer = consumer
        self._active = active
        self._metrics = metrics

    def api(self) -> FastAPI | None:
        """Inside, the gateway has its dead letters only."""
        return self._consumer.api()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled. Raises OSError when the address is taken."""
        settings = self.parts.settings
        sockets = self._listen(settings.http)

        def active() -> None:
            self._active.set()
            ready()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve(sockets), name="gateway http")
                group.create_task(self.parts.batcher.run(), name="gateway submissions")
                group.create_task(self._consumer.run(active), name="gateway consumer")
        finally:
            for listening in sockets:
                listening.close()
            await self.parts.upstreams.close()
            await self.parts.logs.close()

    def _listen(self, address: str) -> list[socket.socket]:
        """Bound here, so that an address that is taken is an error of ours and not an exit of uvicorn's."""
        if address.startswith("unix:"):
            self.address = address
            return []
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, int(port)), family=family, backlog=512)
        self.address = "{}:{}".format(f"[{host}]" if ":" in host else host, listening.getsockname()[1])
        return [listening]

    async def _serve(self, sockets: list[socket.socket]) -> None:
        settings = self.parts.settings
        server = server_for(create_app(self.parts, self._metrics), settings.http)
        server.config.http = limited_protocol(
            max_head_bytes=settings.max_head_bytes, head_timeout_seconds=settings.head_timeout_seconds
        )
        _log.info("listening", address=self.address)
        serving = asyncio.create_task(server.serve(sockets or None))
        try:
            await asyncio.shield(serving)
        finally:
            # Streams see that they are to end; then uvicorn lets the rest finish within its grace.
            self.parts.feed.stop()
            server.should_exit = True
            await asyncio.wait([serving])


async def build(settings: GatewaySettings, runtime: Runtime) -> GatewayService:
    """Migrate the schema and put the service together. Raises Retryable when the database is away."""
    await migrate(runtime.engine, SCHEMA, Path(__file__).parent / "migrations")
    requests = runtime.store(TABLES, "gateway")
    if settings.admin_token is not None:
        await install_bootstrap(requests, settings.admin_token.get_secret_value())

    reads = Reads(runtime.engine)
    token, timeout = runtime.internal_token, settings.upstream_timeout_seconds
    upstreams = Upstreams(settings.upstreams, token=token, timeout_seconds=timeout)
    directory = Directory(upstreams, monotonic=time.monotonic)
    feed = Feed(limit=settings.max_streams)
    handlers = ReadModelHandlers(directory)
    requests.on_news(JOB_NEWS, feed.hear)
    active = asyncio.Event()
    parts = Parts(
        settings=settings,
        store=requests,
        reads=reads,
        authenticator=Authenticator(reads, cache_seconds=settings.principal_cache_seconds, monotonic=time.monotonic),
        directory=directory,
        batcher=SubmitBatcher(requests, batch_limit=settings.submit_batch, queue_limit=settings.submit_queue),
        feed=feed,
        upstreams=upstreams,
        dead_letters=DeadLetters(requests, scope=CONSUMER, instance=runtime.instance),
        logs=AgentLogs(internal_token=token, timeout_seconds=timeout),
        monotonic=time.monotonic,
        waiting_for=lambda: [] if active.is_set() else ["consumer"],
    )
    consumer = EventService(
        name="gateway",
        store=requests.sibling(),
        bus=runtime.bus,
        instance=runtime.instance,
        handlers={
            JOBS_EVENTS: handlers.job_events,
            INVENTORY_STATE: handlers.inventory_state,
            QUEUES_STATE: handlers.queue_state,
            **dict.fromkeys(SERVICE_OF_TOPIC, dead_letters),
        },
        scopes={SCOPE: Retention(settings)},
        on_activate=lambda: directory.load(reads),
    )
    return GatewayService(parts, consumer, active, runtime.metrics)
