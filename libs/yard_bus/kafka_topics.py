"""Topics on Kafka as the registry wants them: what is missing, what differs, and making it so.

Partition counts are final: a key must stay in its partition. Everything else can be altered in place. Settings that the
registry says nothing about are the operator's and stay.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
# aiokafka comes without stubs.

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from yard_bus.kafka_errors import kafka_errors
from yard_bus.kafka_options import KafkaOptions
from yard_domain.errors import Permanent
from yard_events.envelope import MAX_VALUE_BYTES
from yard_events.registry import Policy, Topic

_DYNAMIC_TOPIC_CONFIG = 1
"""Source of a setting that was made on the topic itself. Source: Kafka protocol guide, DescribeConfigs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of a topic: as it is, as the registry wants it. `final`: it cannot be changed in place."""

    topic: str
    setting: str
    actual: str
    wanted: str
    final: bool = False

    @property
    def sentence(self) -> str:
        tail = " (cannot be changed in place: keys would move)" if self.final else ""
        return f"{self.setting} is {self.actual}, should be {self.wanted}{tail}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`missing` topics with the partitions and settings they will get, and differences of those that exist."""

    missing: tuple[NewTopic, ...] = ()
    differences: tuple[Difference, ...] = ()
    settings: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """All settings made on each topic that is to be altered, ours merged in: Kafka replaces them as a whole."""

    @property
    def empty(self) -> bool:
        return not self.missing and not self.differences

    def missing_only(self) -> "Plan":
        return replace(self, differences=(), settings={})


def wanted_settings(topic: Topic) -> dict[str, str]:
    """What the topic's policy means on Kafka. Time is the broker's: a writer's clock must not age the log."""
    settings = {
        "cleanup.policy": topic.policy.value,
        "max.message.bytes": str(2 * MAX_VALUE_BYTES),
        "message.timestamp.type": "LogAppendTime",
    }
    if topic.policy is Policy.DELETE:
        settings["retention.ms"] = str(topic.retention_seconds * 1000)
    else:
        settings["delete.retention.ms"] = str(topic.retention_seconds * 1000)
    return settings


async def plan_topics(options: KafkaOptions, topics: Sequence[Topic]) -> Plan:
    """Compare the brokers with the registry; changes nothing. Raises Retryable while they are away."""
    async with _admin(options) as admin:
        with kafka_errors("describing topics"):
            topics = [replace(topic, name=options.prefix + topic.name) for topic in topics]
            described = {d["topic"]: d for d in await admin.describe_topics([t.name for t in topics])}
            existing = [topic for topic in topics if described[topic.name]["error_code"] == 0]
            actual = await _topic_settings(admin, [topic.name for topic in existing])
    missing = tuple(_new_topic(options, topic) for topic in topics if topic not in existing)
    differences: list[Difference] = []
    settings: dict[str, dict[str, str]] = {}
    for topic in existing:
        partitions, wanted = len(described[topic.name]["partitions"]), wanted_settings(topic)
        if topic.partitions > 1 and partitions != topic.partitions:
            differences.append(Difference(topic.name, "partitions", str(partitions), str(topic.partitions), final=True))
        effective, own = actual[topic.name]
        unlike = [
            Difference(topic.name, name, effective.get(name, "unset"), value)
            for name, value in wanted.items()
            if effective.get(name) != value
        ]
        if unlike:
            differences += unlike
            settings[topic.name] = own | wanted
    return Plan(missing, tuple(differences), settings)


async def apply_plan(options: KafkaOptions, plan: Plan) -> None:
    """Make and alter what the plan says; doing it again does nothing. Final differences stay.

    Raises Retryable while the brokers are away, Permanent when they refuse a topic.
    """
    if not plan.missing and not plan.settings:
        return
    async with _admin(options) as admin:
        if plan.missing:
            with kafka_errors("making topics"):
                answer = await admin.create_topics(list(plan.missing))
            _check([(error[0], error[1], error[2] if len(error) > 2 else None) for error in answer.topic_errors])
        if plan.settings:
            resources = [
                ConfigResource(ConfigResourceType.TOPIC, name, configs=settings)
                for name, settings in sorted(plan.settings.items())
            ]
            with kafka_errors("altering topics"):
                answers = await admin.alter_configs(resources)
            _check([(name, code, text) for a in answers for code, text, _kind, name in a.resources])


def _check(results: Sequence[tuple[str, int, str | None]]) -> None:
    """Another instance that makes the same topics at the same time is welcome."""
    refused = [
        f"{name}: {text or for_code(code).__name__}"
        for name, code, text in results
        if code not in (0, TopicAlreadyExistsError.errno)
    ]
    if refused:
        raise Permanent(f"kafka refused: {'; '.join(refused)}")


def _new_topic(options: KafkaOptions, topic: Topic) -> NewTopic:
    partitions = topic.partitions if topic.partitions > 1 else options.partitions
    return NewTopic(topic.name, partitions, options.replication, topic_configs=wanted_settings(topic))


async def _topic_settings(
    admin: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Per topic all settings in effect, and those made on the topic itself."""
    if not names:
        return {}
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    for answer in await admin.describe_configs(resources):
        for _code, _text, _kind, name, entries in answer.resources:
            effective: dict[str, str] = {}
            own: dict[str, str] = {}
            for entry in entries:
                setting, value, source = entry[0], entry[1], entry[3]
                if value is not None:
                    effective[setting] = value
                    if source == _DYNAMIC_TOPIC_CONFIG:
                        own[setting] = value
            found[name] = (effective, own)
    return found


@asynccontextmanager
async def _admin(options: KafkaOptions) -> AsyncGenerator[Any]:
    admin: Any = AIOKafkaAdminClient(**options.connection(), client_id="yard-topics")
    try:
        with kafka_errors("connecting"):
            await admin.start()
        yield admin
    finally:
        await admin.close()
