"""A service that is told to stop stops, whatever the brokers do: nobody waits for them without end."""

import asyncio
import time
from collections.abc import Callable

import pytest

from support.contract import effects, event, until
from support.kafka_cluster import KafkaCluster
from support.kafka_service import QUICK, Loop, make_topics, running_loop
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_domain.errors import Retryable
from yard_runtime.service import Runtime

StartKafka = Callable[..., KafkaCluster]

STOP_SECONDS = 12.0
"""A handful of orderly ends of two seconds each; the supervisor's patience is longer."""


async def stopped(loop: Loop) -> float:
    """Seconds that it took to end."""
    assert loop.task is not None
    began = time.monotonic()
    loop.task.cancel()
    done, _ = await asyncio.wait([loop.task], timeout=60)
    assert done, "it never ended"
    await asyncio.wait_for(loop.bus.close(), 60)
    return time.monotonic() - began


def left_behind(before: set[asyncio.Task[object]]) -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() - before if not task.done()}


@pytest.mark.parametrize("way", ["frozen", "dead"])
async def test_a_service_with_events_under_way_stops_and_leaves_nothing_running(
    kafka_cluster: StartKafka, runtime: Runtime, way: str
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    before = asyncio.all_tasks()
    async with running_loop(runtime, options) as loop:
        await loop.emit(range(5))
        await loop.until_done(5)
        (cluster.freeze if way == "frozen" else cluster.kill)(1)
        await loop.emit(range(5, 10))
        # In the middle of a transaction whose partitions Kafka knows, or may know.
        await asyncio.sleep(0.5)
        assert await stopped(loop) < STOP_SECONDS
    assert not left_behind(before)
    await asyncio.to_thread(*((cluster.thaw, 1) if way == "frozen" else (cluster.start, 1)))
    async with running_loop(runtime, options, "next") as loop:
        await loop.until_done(10)
        assert [n for _, n in await effects(loop.store)] == list(range(10))


async def test_publishing_to_a_frozen_broker_ends_and_the_same_events_go_out_later(
    kafka_cluster: StartKafka, runtime: Runtime
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    bus = KafkaBus(options, clock=runtime.clock)
    before = asyncio.all_tasks()
    await bus.publish([event(0, seq=0)])
    cluster.freeze(1)
    async with asyncio.timeout(STOP_SECONDS):
        with pytest.raises(Retryable):
            await bus.publish([event(1, seq=1)])
        await bus.close()
    assert not left_behind(before)
    cluster.thaw(1)
    await bus.publish([event(1, seq=1), event(2, seq=2)])
    await bus.close()
    async with running_loop(runtime, options) as loop:
        await loop.until_done(3)
        assert [n for _, n in await effects(loop.store)] == [0, 1, 2]


async def test_a_relay_that_gets_no_transactions_from_the_broker_says_so(
    kafka_cluster: StartKafka, runtime: Runtime
) -> None:
    """A broker that answers, and never has a coordinator: the topic for transactions wants three brokers."""
    cluster = await asyncio.to_thread(kafka_cluster, properties={"transaction.state.log.replication.factor": "3"})
    options = KafkaOptions(cluster.bootstrap, **QUICK)
    await make_topics(options)
    async with running_loop(runtime, options) as loop:
        await loop.emit([0])
        await until(lambda: "contract" in loop.bus.relays and loop.bus.relays["contract"].away, "it says why")
        assert "starting a producer" in (loop.bus.relays["contract"].away or "")
        assert await loop.outbox() == 1
        assert await stopped(loop) < STOP_SECONDS
