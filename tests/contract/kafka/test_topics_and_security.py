"""Topics as the registry wants them; TLS, logins, and what is said when they are wrong."""

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from support.contract import ALL, MANY, ONE, event, number, partitions, read, until
from support.kafka_cluster import KafkaCluster
from support.kafka_harness import admin
from support.kafka_service import QUICK
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_bus.kafka_topics import apply_plan, plan_topics
from yard_domain.errors import Permanent, Retryable
from yard_events.registry import Policy, Topic
from yard_runtime.clock import SystemClock

StartKafka = Callable[..., KafkaCluster]
DAY_MS = 86_400_000


@pytest.fixture
async def options(kafka: str) -> AsyncIterator[KafkaOptions]:
    chosen = KafkaOptions(kafka, prefix=f"s{secrets.token_hex(5)}.", **QUICK | {"partitions": 3})
    yield chosen
    async with admin(chosen) as client:
        await client.delete_topics([name for name in await client.list_topics() if name.startswith(chosen.prefix)])


async def settled(options: KafkaOptions, topics: list[Topic]) -> None:
    async def empty() -> bool:
        return (await plan_topics(options, topics)).empty

    await until(empty, "nothing is left to do")


async def test_missing_topics_are_made_and_applying_again_does_nothing(options: KafkaOptions) -> None:
    plan = await plan_topics(options, ALL)
    assert [topic.name for topic in plan.missing] == [options.prefix + topic.name for topic in ALL]
    await apply_plan(options, plan)
    await settled(options, ALL)
    await apply_plan(options, plan)  # as another instance does that planned at the same time
    async with admin(options) as client:
        described = await client.describe_topics([options.prefix + ONE.name, options.prefix + MANY.name])
    assert [len(topic["partitions"]) for topic in described] == [3, 4], "ours, and what the registry asks for"


async def test_differences_are_named_and_altered_and_the_operators_own_settings_stay(options: KafkaOptions) -> None:
    await apply_plan(options, await plan_topics(options, [ONE]))
    await settled(options, [ONE])
    name = options.prefix + ONE.name
    async with admin(options) as client:
        own = {"segment.ms": "123456", "retention.ms": str(DAY_MS)}
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=own)])

    async def seen() -> bool:
        return any(d.setting == "retention.ms" for d in (await plan_topics(options, [ONE])).differences)

    await until(seen, "the brokers tell of it")
    plan = await plan_topics(options, [ONE])
    assert f"retention.ms is {DAY_MS}, should be 3600000" in [d.sentence for d in plan.differences]
    await apply_plan(options, plan)
    await settled(options, [ONE])
    async with admin(options) as client:
        [answer] = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert settings["segment.ms"] == "123456"


async def test_another_partition_count_is_said_and_left(options: KafkaOptions) -> None:
    await apply_plan(options, await plan_topics(options, [MANY]))
    await settled(options, [MANY])
    grown = [replace(MANY, partitions=9)]
    plan = await plan_topics(options, grown)
    [difference] = plan.differences
    assert difference.final
    assert difference.sentence.startswith("partitions is 4, should be 9")
    await apply_plan(options, plan)
    assert (await plan_topics(options, grown)).differences == plan.differences


async def test_more_replicas_than_brokers_is_refused_in_words(options: KafkaOptions) -> None:
    too_many = replace(options, replication=5)
    with pytest.raises(Permanent, match="replication factor"):
        await apply_plan(too_many, await plan_topics(too_many, [ONE]))


async def test_a_compacted_topic_is_one(options: KafkaOptions) -> None:
    topic = Topic("yard.contract.state.v1", "tests", "key", Policy.COMPACT, 3600)
    await apply_plan(options, await plan_topics(options, [topic]))
    await settled(options, [topic])
    async with admin(options) as client:
        [answer] = await client.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, options.prefix + topic.name)]
        )
        settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert (settings["cleanup.policy"], settings["message.timestamp.type"]) == ("compact", "LogAppendTime")


# --- TLS and logins --------------------------------------------------------------------------------------------------

PASSWORD = "the-right-one"


def certificate(folder: Path) -> tuple[Path, Path]:
    """(a certificate for 127.0.0.1, a file with it and its key), signed by itself."""
    key, made, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(made)),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + made.read_text())
    return made, both


async def test_tls_and_a_login_and_what_is_said_when_they_are_wrong(kafka_cluster: StartKafka, tmp_path: Path) -> None:
    ca, both = certificate(tmp_path)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    cluster = await asyncio.to_thread(
        kafka_cluster,
        listeners={"SECURE": "SASL_SSL"},
        properties={
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": str(both),
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{login} user_yard="{PASSWORD}";',
        },
    )
    right = KafkaOptions(
        cluster.bootstrap_of("SECURE"),
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        username="yard",
        password=PASSWORD,
        ca_file=ca,
        **QUICK,
    )
    bus = KafkaBus(right, clock=SystemClock())
    await bus.ensure_topics([ONE])
    await bus.publish([event(1)])
    async with bus.session(None, [ONE.name]) as session:
        [ref] = await partitions(session)
        assert [number(record) for record in await read(session, ref, 1)] == [1]
    await bus.close()

    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other, _ = certificate(other_folder)
    for wrong in (replace(right, password="the-wrong-one"), replace(right, ca_file=other)):
        refused = KafkaBus(wrong, clock=SystemClock())
        with pytest.raises(Retryable) as told:
            await refused.publish([event(2)])
        assert "the-wrong-one" not in str(told.value)
        assert PASSWORD not in str(told.value)
        await refused.close()
