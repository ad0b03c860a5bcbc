"""The whole service on the real bus."""

import asyncio

from support.billing import granted, released
from yard_billing.app import build
from yard_billing.settings import BillingSettings
from yard_bus.consumer import receive
from yard_events.base import wrap
from yard_events.registry import BILLING_USAGE
from yard_runtime.service import Runtime


async def test_decisions_on_the_bus_become_lines_on_the_bus(runtime: Runtime):
    service = await build(BillingSettings(), runtime)
    ready = asyncio.Event()
    facts = [granted("a", 0), released("a", 2), granted("b", 3), released("b", 4)]
    envelopes = [
        wrap(fact, event_id=f"evt-{n}", source="yard/placement", time=fact.ledger_time, correlation_id=f"trace-{n}")
        for n, fact in enumerate(facts)
    ]
    async with asyncio.timeout(20), runtime.bus.session(None, [BILLING_USAGE]) as reader:
        (ref,) = await anext(reader.assignments())
        await runtime.bus.publish(envelopes[:2])
        running = asyncio.create_task(service.run(ready.set))
        await ready.wait()
        found = list(await reader.read(ref, None, 10))
        await runtime.bus.publish(envelopes[2:])
        found += await reader.read(ref, 1, 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    lines = [receive(record) for record in found]
    assert [line.data.model_dump(include={"line_id", "device_micros"}) for line in lines] == [
        {"line_id": "a/0:1:H100", "device_micros": 2_000_000},
        {"line_id": "b/0:1:H100", "device_micros": 1_000_000},
    ]
    assert [(line.envelope.causation_id, line.envelope.correlation_id) for line in lines] == [
        ("evt-1", "trace-1"),
        ("evt-3", "trace-3"),
    ]
