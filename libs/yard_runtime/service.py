"""What a service is, what it gets, and the loops that most services consist of."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import structlog
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from yard_bus.consumer import Consumer, Handler
from yard_bus.following import follow
from yard_bus.protocol import Bus, PartitionRef, Session
from yard_domain.errors import Fenced, Retryable
from yard_obs.metrics import Metrics, no_metrics
from yard_runtime.contained import contained
from yard_runtime.cycle import Cycle, ScopeRunner
from yard_runtime.dead_letters_api import DeadLetters, dead_letters_router
from yard_runtime.pipeline_gauges import pipeline_gauges
from yard_store.ports import Clock, Ids
from yard_store.signals import listen
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import Store

_log = structlog.get_logger("yard.service")

_NOT_ACTIVE = "not active: waits for the database or the bus, or another instance is active"

CONSUMER = "(consumer)"
RELAY = "(relay)"
"""Scopes that every service has; in brackets, which no pool or queue can have in its name."""

Beside = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the process gives to `build(settings, runtime)`. `instance` names this process among its like."""

    engine: AsyncEngine
    bus: Bus
    clock: Clock
    ids: Ids
    instance: str
    internal_token: str
    metrics: Metrics = field(default_factory=no_metrics)

    def store(self, tables: ServiceTables, service: str) -> Store:
        return Store(
            engine=self.engine,
            tables=tables,
            source=f"yard/{service}",
            appender=self.bus.appender(tables),
            clock=self.clock,
            ids=self.ids,
            name=self.ids.new(self.instance),
            shared=self.bus.shared,
            metrics=self.metrics,
        )


class Service(Protocol):
    """Built by `build(settings, runtime)` in the service's `app.py`."""

    @property
    def name(self) -> str: ...

    def api(self) -> FastAPI | None:
        """The owner's internal HTTP, mounted at `/internal/<name>`; None without one."""
        ...

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; call `ready` once it does. An exception stops the process, visibly."""
        ...


@runtime_checkable
class ReportsProblems(Protocol):
    """A service that can say why it does not serve as it should; the host's `/readyz` asks."""

    def problems(self) -> Sequence[str]: ...


@dataclass(slots=True)
class EventService:
    """A service made of one consumer and the cycles of its scopes.

    It is active while it holds its group on the bus, and stands by while another instance does. When the database goes
    away, or another instance takes over, it lets go of everything in memory, waits, and begins again from what is
    stored: `on_activate` reads it back. Any other error ends `run`. A partition whose offset is gone from the log stops
    alone, and `problems` says so until the end.

    Becoming active raises the term of the consumer and of every scope before anything is read: what an earlier active
    instance has under way is over by then, and whatever it tries afterwards is fenced.
    """

    name: str
    store: Store
    bus: Bus
    instance: str
    handlers: Mapping[str, Handler]
    scopes: Mapping[str, Cycle] = field(default_factory=dict[str, Cycle])
    on_activate: Callable[[], Awaitable[None]] | None = None
    http: FastAPI | None = None
    beside: Mapping[str, Beside] = field(default_factory=dict[str, Beside])
    """What else runs, by name, as long as the service is active; cancelled when it no longer is."""
    backoff_first_seconds: float = 0.05
    backoff_limit_seconds: float = 2.0
    _consumer: Consumer | None = field(default=None, init=False)
    _active: bool = field(default=False, init=False)
    _standby: bool = field(default=False, init=False)
    _api: FastAPI | None = field(default=None, init=False)

    def api(self) -> FastAPI:
        """The service's own HTTP, if it has any, and its dead letters."""
        if self._api is None:
            self._api = self.http or FastAPI(title=f"gpuyard {self.name}", openapi_url=None)
            office = DeadLetters(self.store, scope=CONSUMER, instance=self.instance)
            self._api.include_router(dead_letters_router(office))
        return self._api

    @property
    def active(self) -> bool:
        """Whether this instance does the service's work now."""
        return self._active

    def problems(self) -> Sequence[str]:
        """Empty while all is well. Where instances share the work a standby is well; elsewhere it does not serve."""
        found = [] if self._active or self._standby else [_NOT_ACTIVE]
        if self._consumer is not None:
            found += [f"partition stopped: {why}" for _, why in sorted(self._consumer.stopped.items())]
        return found

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; `ready` is called each time the service becomes active."""
        delay = self.backoff_first_seconds
        while True:
            since = self.store.clock.now()
            try:
                await contained(self._serve(ready))
            except* Retryable as errors:
                _log.warning("inactive, trying again", service=self.name, errors=causes(errors))
            except* Fenced as errors:
                _log.warning("fenced, starting over", service=self.name, errors=causes(errors))
            if (self.store.clock.now() - since).total_seconds() > 2 * self.backoff_limit_seconds:
                delay = self.backoff_first_seconds  # it was well in between; this is another outage
            await self.store.clock.sleep(delay)
            delay = min(delay * 2, self.backoff_limit_seconds)

    async def _serve(self, ready: Callable[[], None]) -> None:
        try:
            async with self.bus.session(self.name, sorted(self.handlers)) as session, asyncio.TaskGroup() as group:
                if self.bus.shared:
                    self._standby = True
                    ready()
                    listening = listen(self.store.engine, self.store.schema, self.store.name, self.store.heard)
                    group.create_task(listening, name=f"{self.name} signals")
                group.create_task(follow(session, lambda refs: self._be_active(session, refs, ready)))
        finally:
            self._standby = False

    async def _be_active(self, session: Session, refs: frozenset[PartitionRef], ready: Callable[[], None]) -> None:
        consuming = await self.store.take(CONSUMER, self.instance)
        owned = {scope: await self.store.take(scope, self.instance) for scope in self.scopes}
        consumer = Consumer(self.store, self.handlers, ownership=consuming)
        relay = self.bus.relay(self.store)
        try:
            async with asyncio.TaskGroup() as group:
                if self.on_activate is not None:
                    await self.on_activate()
                if relay is not None:
                    group.create_task(relay(await self.store.take(RELAY, self.instance)), name=f"{self.name} relay")
                for scope, cycle in self.scopes.items():
                    runner = ScopeRunner(self.store, scope, self.instance, cycle)
                    group.create_task(runner.run(owned[scope]), name=f"{self.name} {scope}")
                group.create_task(consumer.serve(session, refs), name=f"{self.name} consumer")
                gauges = pipeline_gauges(self.name, self.store, session, lambda: consumer.stopped)
                group.create_task(gauges.run(), name=f"{self.name} pipeline gauges")
                for what, work in self.beside.items():
                    group.create_task(work(), name=f"{self.name} {what}")
                _log.info("active", service=self.name, scopes=sorted(self.scopes))
                self._consumer = consumer
                self._active = True
                ready()
        finally:
            self._active = False
            _log.info("no longer active", service=self.name)


def causes(error: BaseException) -> list[str]:
    """The messages of the errors inside of (nested) exception groups."""
    return [str(leaf) for leaf in _leaves(error)]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for part in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(part)
