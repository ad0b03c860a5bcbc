"""Placement's composition root."""

from datetime import timedelta
from pathlib import Path

from yard_domain.names import pool_key
from yard_events import registry
from yard_placement.api import build_api
from yard_placement.cycle import PRUNE, PlacementCycle
from yard_placement.figures import gauges
from yard_placement.handlers import PlacementHandlers
from yard_placement.look import Look
from yard_placement.settings import PlacementSettings
from yard_placement.tables import SCHEMA, TABLES
from yard_runtime.service import EventService, Runtime
from yard_store.migrations import migrate


async def build(settings: PlacementSettings, runtime: Runtime) -> EventService:
    await migrate(runtime.engine, SCHEMA, Path(__file__).parent / "migrations")
    store = runtime.store(TABLES, "placement")
    look = Look()
    handlers = PlacementHandlers(settings, look)
    scope = pool_key(settings.cluster, settings.pool)

    async def activate() -> None:
        look.again()
        async with store.unit_of_work() as uow:
            uow.set_timer(scope, PRUNE, "", uow.now + timedelta(minutes=5))

    return EventService(
        name="placement",
        store=store,
        bus=runtime.bus,
        instance=runtime.instance,
        handlers={
            registry.PLACEMENT_REQUESTS: handlers.requests,
            registry.NODES_EVENTS: handlers.node_events,
            registry.INVENTORY_STATE: handlers.inventory,
        },
        scopes={scope: PlacementCycle(settings, look, runtime.metrics)},
        on_activate=activate,
        http=build_api(store),
        beside={"gauges": gauges(store, runtime.metrics, scope).run},
    )
