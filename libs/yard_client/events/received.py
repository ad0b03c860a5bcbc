"""What a consumer hands out."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from yard_client.events.position import Position
from yard_events.base import EventModel


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One event. `data` is the model of its type (`yard_events.types`), None for a type that this version does not
    know; `value` has the bytes. `headers` are those that are no context attributes, `traceparent` among them. `topic`
    is the registry's name, without an installation's prefix."""

    type: str
    id: str
    source: str
    time: datetime
    subject: str
    key: str
    data: EventModel | None
    value: bytes
    project_id: str | None
    correlation_id: str | None
    causation_id: str | None
    publish_seq: int | None
    headers: Mapping[str, str]
    topic: str
    partition: int
    offset: int
    _acknowledge: Callable[[], Awaitable[None]] = field(repr=False, compare=False)
    _position_after: Callable[[], Position] = field(repr=False, compare=False)

    async def ack(self) -> None:
        """This event is done, and all before it of its partition. Returns when that is saved.

        When the partition went to another member of the group meanwhile, nothing is saved, and that one gets the event
        again. Raises KafkaUnreachable when it cannot be saved within the retry budget.
        """
        await self._acknowledge()

    def position_after(self) -> Position:
        """Where its partition stands when this event and all before it are done; for a `Checkpoint` of your own."""
        return self._position_after()

    def json(self) -> Any:
        """The value as it travelled, fields of later versions included. Raises ValueError when it is not JSON."""
        return json.loads(self.value)


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A record that is no event, or whose value is not what its type promises. It was passed over."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: Mapping[str, str]
    value: bytes | None
    error: str


@dataclass(slots=True)
class Counts:
    """Records since the consumer was made. `filtered`: not asked for; `unknown`: of a type that this version does not
    know, and not asked for either; `tombstones`: deletions of keys in compacted topics."""

    delivered: int = 0
    doubles: int = 0
    filtered: int = 0
    unknown: int = 0
    malformed: int = 0
    tombstones: int = 0
