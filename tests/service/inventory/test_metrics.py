"""What inventory measures."""

from dataclasses import replace

from support.feed import ManualClock
from support.inventory import inventory_on
from support.readings import Readings
from yard_inventory.figures import gauges
from yard_obs.catalogue import CYCLE_DURATION, NODE_COUNT
from yard_runtime.service import Runtime


async def test_nodes_by_liveness(runtime: Runtime) -> None:
    readings = Readings()
    inventory = await inventory_on(replace(runtime, metrics=readings.metrics), ManualClock())
    await inventory.start()
    table = gauges(inventory.store, readings.metrics, "local")
    await inventory.register("n1", "n2")
    async with inventory.store.reading() as connection:
        await table.read(connection)
    assert readings.values(NODE_COUNT) == {("ready",): 2}
    assert {service for service, _ in readings.values(CYCLE_DURATION)} == {"inventory"}
    table.forget()
    assert readings.values(NODE_COUNT) == {}
