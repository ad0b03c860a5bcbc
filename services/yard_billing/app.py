"""Billing's composition root."""

from functools import partial
from pathlib import Path

from yard_billing.api import build_api
from yard_billing.handlers import handle_decisions
from yard_billing.settings import BillingSettings
from yard_billing.tables import SCHEMA, TABLES
from yard_events.registry import PLACEMENT_DECISIONS
from yard_obs.catalogue import BILLED_GPU_TIME
from yard_runtime.service import EventService, Runtime, Service
from yard_store.migrations import migrate


async def build(settings: BillingSettings, runtime: Runtime) -> Service:
    """Migrate the schema and put the service together. Raises Retryable when the database is away."""
    await migrate(runtime.engine, SCHEMA, Path(__file__).parent / "migrations")
    store = runtime.store(TABLES, "billing")
    return EventService(
        name="billing",
        store=store,
        bus=runtime.bus,
        instance=runtime.instance,
        handlers={PLACEMENT_DECISIONS: partial(handle_decisions, billed=runtime.metrics.counter(BILLED_GPU_TIME))},
        http=build_api(store, settings),
    )
