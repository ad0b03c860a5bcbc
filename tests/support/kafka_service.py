"""A service on a Kafka of the test's own: it emits numbered events in units of work and consumes them again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from support.contract import ALL, EFFECTS, ONE, TABLES, Counted, contract_store, effects, until
from support.kafka_harness import admin
from yard_bus.consumer import Received
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_domain.errors import Retryable
from yard_runtime.service import EventService, Runtime
from yard_store.unit_of_work import Store, UnitOfWork

QUICK: dict[str, Any] = {
    "partitions": 1,
    "request_timeout_ms": 3000,
    "heartbeat_interval_ms": 200,
    "session_timeout_ms": 3000,
}


@dataclass
class Loop:
    """One instance. `handled`: numbers whose effect this instance committed."""

    service: EventService
    store: Store
    bus: KafkaBus
    handled: list[int]
    task: asyncio.Task[None] | None = None

    async def emit(self, numbers: Sequence[int], key: str = "a", store: Store | None = None) -> None:
        async with (store or self.store).unit_of_work() as uow:
            for n in numbers:
                uow.emit(Counted(k=key, n=n))

    async def until_done(self, count: int, seconds: float = 60) -> None:
        """Until so many effects are committed, by whichever instance."""
        async with asyncio.timeout(seconds):
            while len(await effects(self.store)) < count:
                assert self.task is None or not self.task.done(), self.task
                await asyncio.sleep(0.05)

    async def outbox(self) -> int:
        async with self.store.reading() as connection:
            return await connection.scalar(sa.select(sa.func.count()).select_from(TABLES.outbox)) or 0


def numbers_of(done: Sequence[tuple[str, int]], key: str) -> list[int]:
    return [n for k, n in done if k == key]


async def make_loop(runtime: Runtime, options: KafkaOptions, name: str = "one") -> Loop:
    bus = KafkaBus(options, clock=runtime.clock)
    store = await contract_store(replace(runtime, bus=bus, instance=name))
    handled: list[int] = []

    async def handle(batch: Sequence[Received], uow: UnitOfWork) -> None:
        counted = [received.data for received in batch if isinstance(received.data, Counted)]
        for event in counted:
            await uow.connection.execute(sa.insert(EFFECTS).values(key=event.k, n=event.n))
        uow.after_commit(lambda: handled.extend(event.n for event in counted))

    return Loop(EventService("contract", store, bus, name, {ONE.name: handle}), store, bus, handled)


@asynccontextmanager
async def running_loop(runtime: Runtime, options: KafkaOptions, name: str = "one") -> AsyncIterator[Loop]:
    loop = await make_loop(runtime, options, name)
    loop.task = asyncio.create_task(loop.service.run(lambda: None))
    try:
        yield loop
    finally:
        loop.task.cancel()
        await asyncio.wait([loop.task])
        await loop.bus.close()


async def make_topics(options: KafkaOptions) -> None:
    """All that the loop needs; waits until the brokers take them."""

    async def made() -> bool:
        try:
            await KafkaBus(options, clock=None).ensure_topics(ALL)  # type: ignore[arg-type]
        except Retryable:
            return False
        async with admin(options) as client:
            names = set(await client.list_topics())
        return {options.prefix + topic.name for topic in ALL} <= names

    await until(made, "the topics are made")
