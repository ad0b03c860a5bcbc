"""The whole service on the real bus and the real clock."""

import asyncio

from support.feed import START
from support.inventory import device
from yard_bus.consumer import receive
from yard_events.base import wrap
from yard_events.registry import INVENTORY_STATE
from yard_events.types import InventoryNode, NodeRegistered, NodeReport
from yard_inventory.app import build
from yard_inventory.settings import InventorySettings
from yard_runtime.service import Runtime

FACTS = {
    "observed_at": START,
    "cluster": "local",
    "pool": "default",
    "boot_id": "b1",
    "journal_id": "j1",
    "epoch": "b1/j1",
    "agent_url": "http://127.0.0.1:9000",
    "advertise_addr": "127.0.0.1",
    "cpus": 8.0,
    "memory_bytes": 2**36,
    "devices": [device("GPU-0")],
}


async def test_a_silent_node_is_lost_and_comes_back(runtime: Runtime):
    """Nothing here moves a clock or calls a cycle: timers and contacts do all of it."""
    settings = InventorySettings(suspect_after_seconds=0.1, lost_after_seconds=0.3)
    service = await build(settings, runtime)
    ready = asyncio.Event()
    told: list[str] = []
    sequence = 0

    async def publish(fact: NodeRegistered | NodeReport) -> None:
        nonlocal sequence
        sequence += 1
        envelope = wrap(fact, event_id=f"evt-{sequence}", source="agent/n1", time=START, publish_seq=sequence)
        await runtime.bus.publish([envelope])

    async with asyncio.timeout(20), runtime.bus.session(None, [INVENTORY_STATE]) as reader:
        (ref,) = await anext(reader.assignments())
        running = asyncio.create_task(service.run(ready.set))
        await ready.wait()
        await publish(NodeRegistered(node="n1", **FACTS))
        while told[-1:] != ["lost"]:
            told += await _states(reader, ref, len(told))
        await publish(NodeReport(node="n1", observed_at=START, epoch="b1/j1", allocations=[]))
        while len(told) < 4:
            told += await _states(reader, ref, len(told))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert told[:4] == ["ready", "suspect", "lost", "ready"]


async def _states(reader, ref, offset: int) -> list[str]:
    found = [receive(record).data for record in await reader.read(ref, offset or None, 100)]
    return [event.state for event in found if isinstance(event, InventoryNode)]
