"""Inventory's composition root."""

from functools import partial
from pathlib import Path

from yard_events.registry import NODES_EVENTS
from yard_inventory.api import build_api
from yard_inventory.cycle import judge_silence
from yard_inventory.figures import gauges
from yard_inventory.handlers import handle_node_events
from yard_inventory.settings import InventorySettings
from yard_inventory.tables import SCHEMA, TABLES
from yard_runtime.service import EventService, Runtime, Service
from yard_store.migrations import migrate


async def build(settings: InventorySettings, runtime: Runtime) -> Service:
    """Migrate the schema and put the service together. Raises Retryable when the database is away."""
    await migrate(runtime.engine, SCHEMA, Path(__file__).parent / "migrations")
    store = runtime.store(TABLES, "inventory")
    return EventService(
        name="inventory",
        store=store,
        bus=runtime.bus,
        instance=runtime.instance,
        handlers={NODES_EVENTS: partial(handle_node_events, cluster=settings.cluster)},
        scopes={settings.cluster: partial(judge_silence, settings=settings, metrics=runtime.metrics)},
        http=build_api(store, settings, runtime.instance),
        beside={"gauges": gauges(store, runtime.metrics, settings.cluster).run},
    )
