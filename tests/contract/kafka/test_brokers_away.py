"""Brokers that go and come back: what was committed flows then, nothing is lost, doubled or out of order."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from support.contract import effects, until
from support.kafka_cluster import KafkaCluster
from support.kafka_service import QUICK, Loop, make_topics, numbers_of, running_loop
from yard_bus.kafka_options import KafkaOptions
from yard_runtime.service import Runtime

StartKafka = Callable[..., KafkaCluster]


async def test_units_of_work_go_on_while_kafka_is_away_and_flow_when_it_is_back(
    kafka_cluster: StartKafka, runtime: Runtime
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    async with running_loop(runtime, options) as loop:
        await loop.emit(range(10))
        await loop.until_done(10)
        cluster.kill(1)
        for n in range(10, 60):
            await loop.emit([n], key="a" if n % 2 else "b")
        assert await loop.outbox() == 50, "they wait in the outbox"
        # It has tried in vain meanwhile, and gives up nothing.
        await until(lambda: loop.bus.relays["contract"].away, "the relay says that nothing goes out")
        await asyncio.to_thread(cluster.start, 1)
        await loop.emit(range(60, 70))
        await loop.until_done(70)
        done = await effects(loop.store)
        assert sorted(n for _, n in done) == list(range(70))
        assert numbers_of(done, "a") == sorted(numbers_of(done, "a"))
        assert numbers_of(done, "b") == sorted(numbers_of(done, "b"))
        await until(lambda: _all_out(loop), "nothing waits any more")


async def _all_out(loop: Loop) -> bool:
    return loop.bus.relays["contract"].away is None and await loop.outbox() == 0


async def test_a_service_that_starts_before_kafka_works_once_it_is_there(
    kafka_cluster: StartKafka, runtime: Runtime
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    await asyncio.to_thread(cluster.stop, 1)
    async with running_loop(runtime, options) as loop:
        await loop.emit(range(5))
        assert loop.service.problems(), "it says that it waits"
        await asyncio.to_thread(cluster.start, 1)
        await loop.until_done(5)
        assert not loop.service.problems()


async def test_a_broker_killed_among_three_costs_nothing(kafka_cluster: StartKafka, runtime: Runtime) -> None:
    cluster = await asyncio.to_thread(kafka_cluster, 3)
    options = KafkaOptions(cluster.bootstrap, **QUICK | {"replication": 3})
    await make_topics(options)
    async with running_loop(runtime, options) as loop:
        await loop.emit([0])
        await loop.until_done(1)
        last = 0
        # Each in turn, so that leaders and coordinators are among them, whichever they are.
        for victim in cluster.numbers:
            killed = asyncio.create_task(asyncio.to_thread(cluster.kill, victim))
            for _ in range(30):
                last += 1
                await loop.emit([last], key=f"k{last % 3}")
                await asyncio.sleep(0.01)
            await killed
            await loop.until_done(last + 1)
            await asyncio.to_thread(cluster.start, victim)
        done = await effects(loop.store)
    assert sorted(n for _, n in done) == list(range(last + 1))
    for key in ("k0", "k1", "k2"):
        assert numbers_of(done, key) == sorted(numbers_of(done, key))


async def test_a_broker_whose_disk_is_full_holds_events_back_and_loses_none(
    kafka_cluster: StartKafka, runtime: Runtime, small_disk: Path
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster, data_dir=small_disk)
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    async with running_loop(runtime, options) as loop:
        await loop.emit(range(5))
        await loop.until_done(5)
        filler = small_disk / "filler"
        _fill(filler)
        # Kafka gives up a log folder that it cannot write to, and with its only one itself. It needs something to
        # write, and may take a while to notice.
        sent = 5
        async with asyncio.timeout(60):
            while cluster.alive() and loop.bus.relays["contract"].away is None:
                await loop.emit([sent])
                sent += 1
                await asyncio.sleep(0.02)
        await loop.emit(range(sent, sent + 10))
        sent += 10
        await until(lambda: loop.bus.relays["contract"].away, "the relay says why nothing goes out")
        filler.unlink()
        if cluster.alive():
            await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.start, 1)
        await loop.until_done(sent)
        assert numbers_of(await effects(loop.store), "a") == list(range(sent))


def _fill(file: Path) -> None:
    """Until not a byte more goes in."""
    with file.open("wb", buffering=0) as content:
        size = 1 << 20
        while size:
            try:
                if content.write(b"x" * size) < size:
                    size //= 2
            except OSError:
                size //= 2
