"""What waits stays where it waits: neither a slow handler nor a large backlog fills the memory."""

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import sqlalchemy as sa

from support.contract import AT, ONE, TABLES, Counted, effects, until
from support.kafka_instances import own_topics
from support.kafka_service import make_loop, running_loop
from yard_bus.consumer import Received
from yard_events.base import wrap
from yard_runtime.service import Runtime
from yard_store.unit_of_work import UnitOfWork

MIB = 2**20


class Large(Counted):
    TYPE: ClassVar[str] = "yard.contract.large.v1"
    filler: str


def memory_bytes() -> int:
    """What this process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_a_slow_handler_leaves_what_it_has_not_reached_on_the_broker(kafka: str, runtime: Runtime) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()
    largest = 0
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options)
        for n in range(0, 150, 3):
            events = [Large(n=m, filler="x" * (MIB - 100)) for m in range(n, n + 3)]
            await loop.bus.publish([wrap(e, event_id=f"evt-{e.n}", source="tests", time=AT) for e in events])
        effect = loop.service.handlers[ONE.name]

        async def slow(batch: Sequence[Received], uow: UnitOfWork) -> None:
            nonlocal largest
            largest = max(largest, sum(len(received.record.value) for received in batch))
            waiting.set()
            await go_on.wait()
            await effect(batch, uow)

        loop.service.handlers = {ONE.name: slow}
        before = memory_bytes()
        loop.task = asyncio.create_task(loop.service.run(lambda: None))
        try:
            async with asyncio.timeout(20):
                await waiting.wait()
            # Longer than it takes to fetch all of it, were it fetched.
            peak = 0
            for _ in range(30):
                peak = max(peak, memory_bytes() - before)
                await asyncio.sleep(0.05)
            assert peak < 80 * MIB, f"{peak / MIB:.0f} MiB of 150 are in memory"
            go_on.set()
            await loop.until_done(150)
        finally:
            loop.task.cancel()
            await asyncio.wait([loop.task])
            await loop.bus.close()
        assert largest <= 10 * MIB
        assert [n for _, n in await effects(loop.store)] == list(range(150))


async def test_a_relay_takes_a_backlog_batch_by_batch(kafka: str, runtime: Runtime) -> None:
    """At no time are more rows numbered, which is: held in memory and under way, than one batch has."""
    backlog = (
        "INSERT INTO contract.outbox (topic, key, headers, value, created_at) "
        'SELECT topic, key, headers, convert_to(format(\'{"k": "a", "n": %s}\', n), \'UTF8\'), created_at '
        "FROM contract.outbox, generate_series(1, 7999) n"
    )
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options)
        await loop.emit([0])
        async with runtime.engine.begin() as connection:
            await connection.execute(sa.text(backlog))
        await loop.bus.close()
        numbered: list[int] = []

        async def all_out() -> bool:
            async with loop.store.reading() as connection:
                t = TABLES.outbox
                statement = sa.select(sa.func.count(), sa.func.count(t.c.publish_seq))
                left, under_way = (await connection.execute(statement)).one()
            numbered.append(under_way)
            return left == 0

        async with running_loop(runtime, options) as working:
            await until(all_out, "the outbox is empty")
            await working.until_done(8_000)
        assert 0 < max(numbered) <= 500
        assert [n for _, n in await effects(loop.store)] == list(range(8_000))
