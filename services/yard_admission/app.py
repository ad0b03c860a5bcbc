"""Admission's composition root."""

from pathlib import Path

from yard_admission import repository
from yard_admission.api import build_api
from yard_admission.cycle import AdmissionCycle, plan_pruning
from yard_admission.figures import gauges
from yard_admission.handlers import AdmissionHandlers
from yard_admission.outbox import SCOPE
from yard_admission.settings import AdmissionSettings
from yard_admission.tables import SCHEMA, TABLES
from yard_events import registry
from yard_events.types import QueueState
from yard_runtime.service import EventService, Runtime
from yard_store.migrations import migrate
from yard_store.unit_of_work import Store

DEFAULT = "default"
"""Name of the queue and of the project that every installation begins with."""


async def build(settings: AdmissionSettings, runtime: Runtime) -> EventService:
    """Migrate, make the default queue and project, put the service together. Raises Retryable without a database."""
    await migrate(runtime.engine, SCHEMA, Path(__file__).parent / "migrations")
    store = runtime.store(TABLES, "admission")
    await _make_defaults(store, settings.default_gpu_quota)
    handlers = AdmissionHandlers(settings)

    async def activate() -> None:
        async with store.unit_of_work() as uow:
            await plan_pruning(uow)

    return EventService(
        name="admission",
        store=store,
        bus=runtime.bus,
        instance=runtime.instance,
        handlers={
            registry.JOBS_REQUESTS: handlers.requests,
            registry.PLACEMENT_DECISIONS: handlers.decisions,
            registry.INVENTORY_STATE: handlers.inventory,
        },
        scopes={SCOPE: AdmissionCycle(settings, runtime.metrics)},
        on_activate=activate,
        http=build_api(store, settings, runtime.instance),
        beside={"gauges": gauges(store, runtime.metrics).run},
    )


async def _make_defaults(store: Store, gpu_quota: int) -> None:
    """Only what is missing: what an operator has changed since stays."""
    async with store.unit_of_work() as uow:
        await repository.put_project(uow.connection, DEFAULT)
        if await repository.create_queue(uow.connection, DEFAULT, gpu_quota):
            uow.emit(QueueState(queue=DEFAULT, gpu_quota=gpu_quota, at=uow.now))
