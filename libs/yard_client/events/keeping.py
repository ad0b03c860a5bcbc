"""Where a consumer's positions come from and go to: its Kafka group, a checkpoint of the caller's, or nowhere."""
# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from yard_client.events.checkpoint import Checkpoint
from yard_client.events.position import Place, Position

_NOTE_BYTES = 4000
"""Kafka takes 4096 beside an offset, unless told otherwise (`offset.metadata.max.bytes`)."""


class Keeper(Protocol):
    async def load(self, places: Collection[Place]) -> Mapping[Place, Position]: ...

    async def save(self, positions: Mapping[Place, Position]) -> None: ...


class GroupKeeper:
    """Offsets in Kafka, with what tells doubles from news in their metadata. Raises KafkaError."""

    def __init__(self, consumer: Any, group: str, connection: Mapping[str, Any]) -> None:
        self._consumer = consumer
        self._group = group
        self._connection = connection

    async def load(self, places: Collection[Place]) -> Mapping[Place, Position]:
        if not places:
            return {}
        # The consumer itself gives offsets without their metadata.
        admin: Any = AIOKafkaAdminClient(**self._connection)
        try:
            await admin.start()
            wanted = [TopicPartition(place.topic, place.partition) for place in places]
            found = await admin.list_consumer_group_offsets(self._group, partitions=wanted)
        finally:
            await admin.close()
        return {
            Place(where.topic, where.partition): Position.from_note(kept.offset, kept.metadata)
            for where, kept in found.items()
            if kept.offset >= 0
        }

    async def save(self, positions: Mapping[Place, Position]) -> None:
        await self._consumer.commit(
            {
                TopicPartition(place.topic, place.partition): (position.offset, position.note(_NOTE_BYTES))
                for place, position in positions.items()
            }
        )


class CheckpointKeeper:
    """A checkpoint is loaded as a whole, once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._loaded: Mapping[Place, Position] | None = None

    async def load(self, places: Collection[Place]) -> Mapping[Place, Position]:
        if self._loaded is None:
            self._loaded = await self._checkpoint.load()
        return {place: self._loaded[place] for place in places if place in self._loaded}

    async def save(self, positions: Mapping[Place, Position]) -> None:
        await self._checkpoint.save(positions)


class Nowhere:
    """For readers that begin at one end every time."""

    async def load(self, places: Collection[Place]) -> Mapping[Place, Position]:
        return {}

    async def save(self, positions: Mapping[Place, Position]) -> None:
        return
