"""What following events can end in. Each message says what to do."""

from collections.abc import Iterable
from pathlib import Path

from yard_client.errors import ClientError


class KafkaUnreachable(ClientError):
    """No broker answered within the retry budget."""

    def __init__(self, bootstrap: str, cause: str) -> None:
        super().__init__(f"cannot reach Kafka at {bootstrap}: {cause}")
        self.bootstrap = bootstrap


class KafkaRefused(ClientError):
    """The brokers do not let this user do it: wrong credentials, or no right to the topic or group."""


class TopicMissing(ClientError):
    """Topics that do not exist on this Kafka, or that this user must not see."""

    def __init__(self, bootstrap: str, missing: Iterable[str], existing: Iterable[str]) -> None:
        self.missing = sorted(missing)
        similar = sorted(name for name in existing if "yard." in name)
        seen = (
            f"gpuyard's topics there: {', '.join(similar)}" if similar else "there are none of gpuyard's topics there"
        )
        super().__init__(
            f"no topic {', '.join(self.missing)} at {bootstrap}, or no right to read it; {seen}. Is it the Kafka that "
            "YARD_KAFKA names, and does the installation put a prefix before its topics?"
        )


class PositionLost(ClientError):
    """The log does not have the saved position any more: events were deleted before they were read."""

    def __init__(self, topic: str, partition: int, offset: int, first: int, end: int) -> None:
        super().__init__(
            f"{topic}/{partition}: the saved position {offset} is outside of what is kept, [{first}, {end}]: events "
            "were deleted unread, or the topic was made anew. Read the state of what you follow over HTTP, then go on "
            "with lost_position='earliest'."
        )
        self.topic, self.partition, self.offset, self.first, self.end = topic, partition, offset, first, end


class CheckpointUnreadable(ClientError):
    """The file of positions is there but is not one."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"{path} is no checkpoint: {cause}. Without it, reading begins anew.")
        self.path = path
