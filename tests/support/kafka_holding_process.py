"""The suites' service as a process that can be frozen inside of a transaction: `python -m support.kafka_holding_process
DSN BOOTSTRAP PREFIX NAME SECONDS`, SECONDS being how long PostgreSQL lets a transaction idle.

It says `inside` in the handler of an event with the key `hold`, its effect written and not committed, and stays there
for a second. `ready` and `standby` as `kafka_service_process` says them.
"""

import asyncio
import sys
from collections.abc import Sequence

from support.contract import ONE, Counted
from support.kafka_service import QUICK, Loop, make_loop
from support.kafka_service_process import tell_of_activity
from yard_bus.consumer import Received
from yard_bus.kafka_options import KafkaOptions
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.service import Runtime
from yard_store.engine import create_engine
from yard_store.unit_of_work import UnitOfWork


def hold(loop: Loop) -> None:
    effect = loop.service.handlers[ONE.name]

    async def handle(batch: Sequence[Received], uow: UnitOfWork) -> None:
        await effect(batch, uow)
        if any(isinstance(received.data, Counted) and received.data.k == "hold" for received in batch):
            print("inside", flush=True)
            await asyncio.sleep(1)

    loop.service.handlers = {ONE.name: handle}


async def main(dsn: str, bootstrap: str, prefix: str, name: str, seconds: str) -> None:
    clock = SystemClock()
    engine = create_engine(dsn, application=name, idle_in_transaction_seconds=float(seconds))
    runtime = Runtime(engine, None, clock, SystemIds(clock), name, "")  # type: ignore[arg-type]
    loop = await make_loop(runtime, KafkaOptions(bootstrap, prefix=prefix, **QUICK), name)
    hold(loop)
    await tell_of_activity(loop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
