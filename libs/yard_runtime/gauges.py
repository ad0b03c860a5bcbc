"""Gauges that show what tables hold: read by the active instance only, at a pace of their own, never at a scrape."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.errors import Retryable
from yard_store.unit_of_work import Store

_log = structlog.get_logger("yard.gauges")

_SHARE_OF_TIME = 0.02

GAUGES_EVERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TableGauges:
    """`read` sets gauges from a consistent snapshot; `forget` removes them, when another instance goes on.

    They are read every `every_seconds`, and more rarely if that would take more than a fiftieth of the time.
    """

    store: Store
    read: Callable[[AsyncConnection], Awaitable[None]]
    forget: Callable[[], None]
    every_seconds: float = GAUGES_EVERY_SECONDS
    monotonic: Callable[[], float] = time.monotonic

    async def run(self) -> None:
        """Until cancelled. A database that is away is the service's business: gauges stand meanwhile."""
        try:
            while True:
                began = self.monotonic()
                try:
                    async with self.store.reading() as connection:
                        await self.read(connection)
                except Retryable as error:
                    _log.warning("gauges cannot be read", schema=self.store.schema, error=str(error))
                took = self.monotonic() - began
                await self.store.clock.sleep(max(self.every_seconds, took / _SHARE_OF_TIME))
        finally:
            self.forget()
