"""Topic ids: what tells a topic from another one made later under the same name.

aiokafka speaks an older metadata request that lacks them, so this is version 12 of it.
Source: Kafka protocol guide, Metadata (key 3); KIP-516.
"""
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportAssignmentType=false
# aiokafka comes without stubs.

import uuid
from collections.abc import Iterable
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from yard_bus.kafka_errors import kafka_errors
from yard_domain.errors import Retryable


class _Uuid(AbstractType[uuid.UUID]):
    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


_NO_ID = uuid.UUID(int=0)
_TEXT = CompactString("utf-8")


class _MetadataResponseV12(Response):
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields)),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequestV12(RequestStruct):
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponseV12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicIdsRequest(Request[_MetadataRequestV12]):
    API_KEY = 3

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: type[_MetadataRequestV12]) -> _MetadataRequestV12:
        tags: dict[int, bytes] = {}
        topics = [(_NO_ID, name, tags) for name in self._names]
        return request_struct_class(topics, False, False, tags)


class TopicShape:
    """A topic as the brokers have it."""

    __slots__ = ("incarnation", "partitions")

    def __init__(self, incarnation: str, partitions: int) -> None:
        self.incarnation = incarnation
        self.partitions = partitions


async def topic_shapes(client: Any, names: Iterable[str], prefix: str) -> dict[str, TopicShape]:
    """Id and partition count of those topics that exist, by their names without the prefix. `client` is an
    AIOKafkaClient. Raises Retryable."""
    with kafka_errors("asking for topics"):
        node = client.get_random_node()
        if node is None:
            raise Retryable("kafka: no broker is known yet")
        answer = await client.send(node, _TopicIdsRequest(prefix + name for name in names))
    return {
        name.removeprefix(prefix): TopicShape(str(topic_id), len(partitions))
        for error, name, topic_id, _internal, partitions, _operations, _tags in answer.topics
        if error == 0 and topic_id != _NO_ID
    }
