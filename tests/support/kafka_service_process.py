"""The suites' service as a process of its own, to be killed and frozen: `python -m support.kafka_service_process DSN
BOOTSTRAP PREFIX NAME`. Prints `ready` when it is active, `standby` when it is not any more."""

import asyncio
import sys

from support.kafka_service import QUICK, Loop, make_loop
from yard_bus.kafka_options import KafkaOptions
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.service import Runtime
from yard_store.engine import create_engine


async def main(dsn: str, bootstrap: str, prefix: str, name: str) -> None:
    clock = SystemClock()
    engine = create_engine(dsn, application=name)
    options = KafkaOptions(bootstrap, prefix=prefix, **QUICK)
    # The bus of the loop takes the place of this one.
    runtime = Runtime(engine, None, clock, SystemIds(clock), name, "")  # type: ignore[arg-type]
    await tell_of_activity(await make_loop(runtime, options, name))


async def tell_of_activity(loop: Loop) -> None:
    """Run the service, and print what becomes of it."""
    serving = asyncio.create_task(loop.service.run(lambda: None))
    said = False
    while not serving.done():
        if loop.service.active != said:
            said = loop.service.active
            print("ready" if said else "standby", flush=True)
        await asyncio.sleep(0.02)
    await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
