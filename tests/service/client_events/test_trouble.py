"""A Kafka that is not there, lacks the topic, or goes away while it is read."""

import asyncio
from collections.abc import Callable

import pytest

from support.event_log import Log, job_event, log_on, number_of
from support.free_ports import free_ports
from support.kafka_cluster import KafkaCluster
from yard_client.events import EventConsumer, KafkaSecurity, KafkaUnreachable, TopicMissing
from yard_client.retry import RetryPolicy
from yard_events.registry import JOBS_EVENTS


@pytest.mark.parametrize("group", [None, "some-group"])
async def test_a_topic_that_does_not_exist_is_named_with_those_that_do(log: Log, group: str | None) -> None:
    consumer = EventConsumer(log.bootstrap, prefix=log.prefix, topics=["yard.budgets.state.v1"], group=group)
    with pytest.raises(TopicMissing) as caught:
        async with consumer:
            raise AssertionError
    assert caught.value.missing == [f"{log.prefix}yard.budgets.state.v1"]
    assert f"{log.prefix}{JOBS_EVENTS}" in str(caught.value)


async def test_where_no_kafka_is_it_says_so_within_its_budget() -> None:
    [port] = free_ports(1)
    policy = RetryPolicy(budget_seconds=0.5, first_pause_seconds=0.1)
    with pytest.raises(KafkaUnreachable, match=f"127.0.0.1:{port}"):
        async with EventConsumer(f"127.0.0.1:{port}", retry=policy):
            raise AssertionError


@pytest.mark.parametrize("group", [None, "patient"])
async def test_a_broker_that_dies_and_comes_back_is_read_on_without_loss_or_doubles(
    kafka_cluster: Callable[..., KafkaCluster], group: str | None
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    async with log_on(cluster.bootstrap, topics=[JOBS_EVENTS]) as log:
        await log.write([job_event(number) for number in range(1, 6)])
        async with EventConsumer(log.bootstrap, prefix=log.prefix, group=group) as consumer:
            found = [number_of(await anext(consumer)) for _ in range(5)]
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.to_thread(cluster.kill, 1)
            await asyncio.to_thread(cluster.start, 1)
            await log.write([job_event(5), job_event(6), job_event(7)])
            found.append(number_of(await waiting))
            event = await anext(consumer)
            found.append(number_of(event))
            await event.ack()
        assert found == [1, 2, 3, 4, 5, 6, 7]


async def test_credentials_let_in_and_wrong_ones_are_refused(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    cluster = await asyncio.to_thread(
        kafka_cluster,
        listeners={"GUARDED": "SASL_PLAINTEXT"},
        properties={
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.guarded.plain.sasl.jaas.config": f'{login} user_reader="right";',
        },
    )
    guarded = cluster.bootstrap_of("GUARDED")

    def security(password: str) -> KafkaSecurity:
        return KafkaSecurity("SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="reader", password=password)

    async with log_on(cluster.bootstrap, topics=[JOBS_EVENTS]) as log:
        await log.write([job_event(1)])
        options = {"prefix": log.prefix, "group": "readers"}
        async with EventConsumer(guarded, security=security("right"), **options) as consumer:
            assert number_of(await anext(consumer)) == 1
        policy = RetryPolicy(budget_seconds=1.0)
        with pytest.raises(KafkaUnreachable, match="may refuse the credentials"):
            async with EventConsumer(guarded, security=security("wrong"), retry=policy, **options):
                raise AssertionError
