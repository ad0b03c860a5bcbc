"""Gauges read from tables: as long as the service is active, at a pace of their own, and gone with it."""

import asyncio
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_domain.errors import Retryable
from yard_runtime.gauges import TableGauges
from yard_runtime.service import Runtime
from yard_store.tables import ServiceTables


class CountedPauses:
    """Time does not pass; each pause is noted and lasts until the loop comes round again."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self.pauses: list[float] = []
        self.enough = asyncio.Event()

    def now(self) -> datetime:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            self.enough.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize(("took", "pause"), [(0.001, 5.0), (1.0, 50.0)])
async def test_the_pause_grows_with_the_cost_and_all_is_forgotten_at_the_end(
    runtime: Runtime, took: float, pause: float
) -> None:
    clock = CountedPauses(runtime)
    store = replace(runtime, clock=clock).store(ServiceTables("none"), "none")
    ticks = iter(number * took for number in range(1000))
    done: list[str] = []

    async def read(connection: AsyncConnection) -> None:
        done.append("read")
        if len(done) == 2:
            raise Retryable("the database is away")

    gauges = TableGauges(store, read, lambda: done.append("forgotten"), monotonic=lambda: next(ticks))
    running = asyncio.create_task(gauges.run())
    async with asyncio.timeout(20):
        await clock.enough.wait()
    assert (done, clock.pauses) == (["read"] * 3, [pytest.approx(pause)] * 3)
    running.cancel()
    await asyncio.wait([running])
    assert done[-1] == "forgotten"
