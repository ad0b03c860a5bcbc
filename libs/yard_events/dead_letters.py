"""What travels on the dead-letter topics: a record was parked (again), and it no longer is.

Both types have the key of the original and name it by the same headers, so that a follower can match them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from yard_events.registry import CONSUMING_SERVICES, dead_letter_topic

PARKED_TYPE = "yard.dlq.parked.v1"
"""Its value is the parked record's, whatever bytes those are."""
RESOLVED_TYPE = "yard.dlq.resolved.v1"

DEAD_LETTER_TYPES = (PARKED_TYPE, RESOLVED_TYPE)
"""Not in the table of models: each travels on several topics, and the value of the first is anything."""

SERVICE_OF_TOPIC = {dead_letter_topic(service): service for service in CONSUMING_SERVICES}

QUEUED_BEHIND = "queued behind an earlier record of its key"
"""Instead of an error, for a record that nobody tried."""

_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


class DeadLetterOutcome(StrEnum):
    HANDLED = "handled"
    DISCARDED = "discarded"


class DeadLetterResolved(BaseModel):
    """A record that was parked no longer is. Headers yard_dlq_topic, yard_dlq_partition and yard_dlq_offset name it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    outcome: DeadLetterOutcome = Field(description="handled: a retry had its effect; discarded: it never will have.")
    discarded_by: str | None = Field(default=None, description="Who gave it up.")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the original stands in the log."""

    topic: str
    partition: int
    offset: int

    def headers(self) -> dict[str, str]:
        return {
            "yard_dlq_topic": self.topic,
            "yard_dlq_partition": str(self.partition),
            "yard_dlq_offset": str(self.offset),
        }


def origin_of(headers: Mapping[str, str]) -> Origin | None:
    """The original that a record of a dead-letter topic is about; None when its headers name none."""
    topic = headers.get("yard_dlq_topic", "")
    partition = _number(headers.get("yard_dlq_partition", ""), _MAX_PARTITION)
    offset = _number(headers.get("yard_dlq_offset", ""), _MAX_OFFSET)
    if not topic.isprintable() or not topic or partition is None or offset is None:
        return None
    return Origin(topic, partition, offset)


def error_of(headers: Mapping[str, str]) -> str | None:
    """Why the original is parked; None when it only queues behind another."""
    error = headers.get("yard_dlq_error", "")
    return None if error in ("", QUEUED_BEHIND) else error


def _number(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        return None
    return number if (number := int(text)) <= most else None
