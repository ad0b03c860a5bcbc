"""What the tests' own Kafka promises to those who break it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import UnknownTopicOrPartitionError

from support.contract import until
from support.kafka_answers import live_brokers
from support.kafka_cluster import KafkaCluster
from support.kafka_programs import KafkaUnavailable

StartKafka = Callable[..., KafkaCluster]


async def make_topic(bootstrap: str, copies: int = 1) -> str:
    topic = f"cluster-test-{uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=copies)])
    finally:
        await admin.close()
    assert [error[1] for error in answer.topic_errors] == [0], answer
    return topic


async def write(bootstrap: str, topic: str, *values: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The first `count` values of the topic's one partition."""
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]


def ports(cluster: KafkaCluster) -> dict[int, int]:
    return {number: int(cluster.address(number).rsplit(":", 1)[1]) for number in cluster.numbers}


async def test_a_record_goes_in_and_comes_out(kafka: str) -> None:
    async with asyncio.timeout(30):
        topic = await make_topic(kafka)
        await write(kafka, topic, b"1", b"2")
        assert await read(kafka, topic, 2) == [b"1", b"2"]


async def test_an_aborted_transaction_is_not_read(kafka: str) -> None:
    async with asyncio.timeout(30):
        topic = await make_topic(kafka)
        async with AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=topic) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"committed")
        assert await read(kafka, topic, 1) == [b"committed"]


async def test_nobody_makes_a_topic_by_naming_it(kafka: str) -> None:
    async with asyncio.timeout(30), AIOKafkaProducer(bootstrap_servers=kafka, request_timeout_ms=500) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send_and_wait(f"cluster-test-{uuid4().hex}", b"1")


async def test_a_killed_broker_starts_again_with_its_records(kafka_cluster: StartKafka) -> None:
    cluster = kafka_cluster()
    before = cluster.bootstrap
    async with asyncio.timeout(60):
        topic = await make_topic(cluster.bootstrap)
        await write(cluster.bootstrap, topic, b"before")
        cluster.kill(1)
        assert cluster.alive() == ()
        assert live_brokers(ports(cluster)[1]) == frozenset()
        cluster.start(1)
        assert cluster.bootstrap == before
        await write(cluster.bootstrap, topic, b"after")
        assert await read(cluster.bootstrap, topic, 2) == [b"before", b"after"]


async def test_a_stopped_broker_starts_again_with_its_records(kafka_cluster: StartKafka, tmp_path: Path) -> None:
    cluster = kafka_cluster(data_dir=tmp_path)
    async with asyncio.timeout(60):
        topic = await make_topic(cluster.bootstrap)
        await write(cluster.bootstrap, topic, b"before")
        cluster.stop(1)
        cluster.start(1)
        assert await read(cluster.bootstrap, topic, 1) == [b"before"]
    cluster.close()
    assert (tmp_path / "broker-1" / f"{topic}-0").is_dir(), "data in a folder of the caller's stays"


async def test_a_frozen_broker_keeps_what_it_was_sent_until_it_is_thawed(kafka_cluster: StartKafka) -> None:
    cluster = kafka_cluster()
    async with asyncio.timeout(60):
        topic = await make_topic(cluster.bootstrap)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"before")
            cluster.freeze(1)
            sent = await producer.send(topic, b"frozen")
            done, _ = await asyncio.wait([sent], timeout=0.5)
            assert not done
            cluster.thaw(1)
            await sent
        assert await read(cluster.bootstrap, topic, 2) == [b"before", b"frozen"]


async def test_three_brokers_survive_the_death_of_one(kafka_cluster: StartKafka) -> None:
    cluster = kafka_cluster(brokers=3)
    async with asyncio.timeout(60):
        topic = await make_topic(cluster.bootstrap, copies=3)
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True
        ) as producer:
            await producer.send_and_wait(topic, b"of three")
            leader = (await producer.client.fetch_all_metadata()).leader_for_partition(TopicPartition(topic, 0))
            assert leader in cluster.numbers
            cluster.kill(leader)
            await producer.send_and_wait(topic, b"of two")
        assert await read(cluster.bootstrap, topic, 2) == [b"of three", b"of two"]
        cluster.start(leader)
        for port in ports(cluster).values():
            assert live_brokers(port) == {1, 2, 3}


def test_a_broker_that_ends_while_it_starts_is_reported_with_its_log(kafka_cluster: StartKafka) -> None:
    cluster = kafka_cluster()
    cluster.kill(1)
    meta = cluster.data_of(1) / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    with pytest.raises(KafkaUnavailable, match=r"(?s)broker 1 ended while it started.*Stored node id 7"):
        cluster.start(1)


def test_a_wrong_setting_is_reported_with_what_kafka_says(kafka_cluster: StartKafka) -> None:
    with pytest.raises(KafkaUnavailable, match=r"Invalid value 0 for configuration num\.io\.threads"):
        kafka_cluster(properties={"num.io.threads": "0"})


_STARTS_AND_WAITS = """
import asyncio, sys
from support.kafka_cluster import start_kafka

async def main():  # in a thread that ends before the process does
    return await asyncio.to_thread(start_kafka)

cluster = asyncio.run(main())
print(cluster.address(1), flush=True)
sys.stdin.read()
"""


async def test_brokers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    starter = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _STARTS_AND_WAITS,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    async with asyncio.timeout(60):
        port = int((await starter.stdout.readline()).decode().rsplit(":", 1)[1])
        assert live_brokers(port) == {1}
        starter.send_signal(signal.SIGKILL)
        await starter.wait()

        async def gone() -> bool:
            return live_brokers(port) == frozenset()

        await until(gone, "the broker has ended")
