"""What placement measures."""

from dataclasses import replace

import pytest

from support.placement import SCOPE, PoolDesk, device
from support.readings import Readings
from yard_obs.catalogue import CYCLE_DURATION, DECISIONS, GPU_ALLOCATION, GPU_FRAGMENTATION
from yard_placement.figures import gauges
from yard_runtime.service import Runtime


@pytest.fixture
def readings() -> Readings:
    return Readings()


@pytest.fixture
async def desk(runtime: Runtime, readings: Readings) -> PoolDesk:
    return await PoolDesk.open(replace(runtime, metrics=readings.metrics), blocked_notice_seconds=0.0)


async def test_decisions_and_how_long_they_take(desk: PoolDesk, readings: Readings) -> None:
    await desk.place("a")
    await desk.node()
    await desk.place("b", gpus=8)
    granted = {("granted", "none"): 1.0}
    assert readings.values(DECISIONS) == granted | {("blocked", "no_nodes"): 1, ("blocked", "too_large"): 1}
    phases = {phase for service, phase in readings.values(CYCLE_DURATION) if service == "placement"}
    assert phases == {"look", "advance", "place", "tell"}


async def test_devices_by_what_the_ledger_says(desk: PoolDesk, readings: Readings) -> None:
    table = gauges(desk.store, readings.metrics, SCOPE)

    async def look() -> tuple[dict[str, float], float]:
        async with desk.store.reading() as connection:
            await table.read(connection)
        found = readings.values(GPU_ALLOCATION)
        assert {(pool, model) for pool, model, _ in found} <= {(SCOPE, "H100")}
        return {state: value for (_, _, state), value in found.items()}, readings.values(GPU_FRAGMENTATION)[(SCOPE,)]

    assert await look() == ({}, 0)
    await desk.node("n1", gpus=2)
    await desk.node("n2", gpus=2)
    assert await look() == ({"free": 4}, 0)
    await desk.place("a")
    assert await look() == ({"free": 3, "allocated": 1}, pytest.approx(1 / 3))
    await desk.started("a")
    await desk.exited("a")
    assert await look() == ({"free": 3, "dirty": 1}, pytest.approx(1 / 3))
    await desk.emptied("a")
    await desk.inventory("n2", devices=[device("n2/0", 0, healthy=False), device("n2/1", 1)])
    assert await look() == ({"free": 3, "unhealthy": 1}, 0)
    await desk.inventory("n1", cordoned=True)
    assert await look() == ({"free": 3, "unhealthy": 1}, 0)
    table.forget()
    assert (readings.values(GPU_ALLOCATION), readings.values(GPU_FRAGMENTATION)) == ({}, {})
