"""Three instances of one service: one works, and every effect happens once whoever comes and goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from support.contract import MANY, ONE, Counted, effects, event, until
from support.kafka_instances import own_topics
from support.kafka_service import Loop, make_loop, numbers_of
from support.virtual_clock import VirtualClock
from yard_bus.kafka_options import KafkaOptions
from yard_runtime.service import Runtime

NAMES = ("one", "two", "three")


class Instances:
    """They come and go by name. `writer` leaves events in the outbox and runs nothing."""

    def __init__(self, runtime: Runtime, options: KafkaOptions, writer: Loop) -> None:
        self._runtime = runtime
        self._options = options
        self.writer = writer
        self.running: dict[str, Loop] = {}

    async def start(self, name: str, runtime: Runtime | None = None) -> Loop:
        loop = await make_loop(runtime or self._runtime, self._options, name)
        loop.service.handlers = {topic.name: loop.service.handlers[ONE.name] for topic in (ONE, MANY)}
        loop.task = asyncio.create_task(loop.service.run(lambda: None))
        self.running[name] = loop
        return loop

    async def stop(self, name: str) -> None:
        loop = self.running.pop(name)
        assert loop.task is not None
        loop.task.cancel()
        await asyncio.wait([loop.task])
        await loop.bus.close()

    def active(self) -> list[str]:
        return [name for name, loop in self.running.items() if loop.service.active]

    async def until_one_is_active(self) -> str:
        await until(lambda: len(self.active()) == 1, "one is active")
        return self.active()[0]

    async def until_joined(self, name: str) -> None:
        """A member of the group, and told what it has: as a standby, nothing."""
        [session] = self.running[name].bus.sessions or [None]
        while session is None or session._consumer._coordinator.generation < 1:
            await asyncio.sleep(0.02)
            [session] = self.running[name].bus.sessions or [None]

    async def emit(self, n: int) -> None:
        async with self.writer.store.unit_of_work() as uow:
            uow.emit(Counted(n=n, k=f"k{n % 3}"))


@asynccontextmanager
async def instances(bootstrap: str, runtime: Runtime) -> AsyncIterator[Instances]:
    async with own_topics(bootstrap) as options:
        writer = await make_loop(runtime, options, "writer")
        them = Instances(runtime, options, writer)
        try:
            yield them
        finally:
            for name in list(them.running):
                await them.stop(name)
            await writer.bus.close()


async def in_order_and_once(writer: Loop, count: int) -> None:
    done = await effects(writer.store)
    assert sorted(n for _, n in done) == list(range(count))
    for key in ("k0", "k1", "k2"):
        assert numbers_of(done, key) == sorted(numbers_of(done, key))


async def test_those_that_join_take_nothing_and_one_takes_everything_when_the_active_one_goes(
    kafka: str, runtime: Runtime
) -> None:
    async with instances(kafka, runtime) as them, asyncio.timeout(60):
        first = await them.start("one")
        assert await them.until_one_is_active() == "one"
        for name in ("two", "three"):
            await them.start(name)
            await them.until_joined(name)
        for n in range(10):
            await them.emit(n)
        await them.writer.until_done(10)
        assert them.active() == ["one"]
        assert len(first.handled) == 10
        await them.stop("one")
        successor = await them.until_one_is_active()
        await them.writer.bus.publish([event(n, f"p{n}", topic=MANY.name) for n in range(10, 30)])
        await them.writer.until_done(30)
        assert them.active() == [successor]
        assert sorted(them.running[successor].handled) == list(range(10, 30)), "all partitions went to the same one"
        for name, loop in them.running.items():
            assert loop.service.problems() == [], name


async def test_a_rolling_restart_under_load_loses_and_doubles_nothing(kafka: str, runtime: Runtime) -> None:
    async with instances(kafka, runtime) as them, asyncio.timeout(90):
        for name in NAMES:
            await them.start(name)
        count = 0
        restarting = True

        async def load() -> None:
            nonlocal count
            while restarting:
                await them.emit(count)
                count += 1
                await asyncio.sleep(0.005)

        feeding = asyncio.create_task(load())
        await them.until_one_is_active()
        for name in NAMES * 2:
            await them.writer.until_done(len(await effects(them.writer.store)) + 15)
            await them.stop(name)
            await them.until_one_is_active()
            await them.start(name)
            await them.until_joined(name)
        restarting = False
        await feeding
        await them.writer.until_done(count)
        await in_order_and_once(them.writer, count)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_clocks_an_hour_apart_still_make_one_active_member(kafka: str, runtime: Runtime, hours: int) -> None:
    apart = replace(runtime, clock=VirtualClock(runtime.clock.now() + timedelta(hours=hours)))
    async with instances(kafka, runtime) as them, asyncio.timeout(60):
        await them.start("one")
        assert await them.until_one_is_active() == "one"
        await them.start("two", apart)
        await them.until_joined("two")
        await them.emit(0)
        await them.writer.until_done(1)
        assert them.active() == ["one"]
        await them.stop("one")
        assert await them.until_one_is_active() == "two"
        await them.start("one")
        await them.until_joined("one")
        await them.emit(1)
        await them.writer.until_done(2)
        assert them.active() == ["two"]
        await in_order_and_once(them.writer, 2)
