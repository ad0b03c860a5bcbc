"""What a bus is. Implementations: `postgres` (embedded); Kafka and the simulated bus follow the same contract suite."""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from yard_events.envelope import Envelope
from yard_events.registry import Topic
from yard_store.ports import EventAppender
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import Ownership, Store


@dataclass(frozen=True, slots=True, order=True)
class PartitionRef:
    """One partition of one incarnation of a topic: a topic deleted and made again is another incarnation."""

    topic: str
    partition: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Record:
    """One record as stored. Headers and value are bytes of others: not yet checked.

    `following` is where reading goes on: behind the record, and behind what else the log keeps with it.
    """

    ref: PartitionRef
    offset: int
    key: str
    type: str
    headers: dict[str, str]
    value: bytes
    skip_to: int | None = None

    @property
    def following(self) -> int:
        return self.offset + 1 if self.skip_to is None else self.skip_to


class OffsetGone(Exception):
    """The offset to resume from is no longer in the log, or never was: nothing resets silently."""


class Session(Protocol):
    """Membership of a group, or a plain reader. Over when its connection is: then every call raises Retryable."""

    def assignments(self) -> AsyncIterator[frozenset[PartitionRef]]:
        """The partitions this member reads, again each time they change; none for a standby. Ends by raising Retryable.

        Asking for the next says that work on the ones before has stopped: see `follow`.
        """
        ...

    async def read(self, ref: PartitionRef, offset: int | None, limit: int) -> list[Record]:
        """Up to `limit` records from `offset` on (None: the oldest there is), at least one: waits for it. Raises
        OffsetGone."""
        ...

    async def lag(self) -> dict[tuple[str, int], int]:
        """(topic, partition) → records that are in the log and were not handed out yet, of what is read here."""
        ...


class Bus(Protocol):
    """`shared`: several instances of a service write to its tables at once, so they must wake one another."""

    @property
    def shared(self) -> bool: ...

    def appender(self, tables: ServiceTables) -> EventAppender:
        """Where a service's units of work append their events."""
        ...

    def relay(self, store: Store) -> Callable[[Ownership], Coroutine[Any, Any, None]] | None:
        """What the active instance of a service runs to get its committed events out; None where that is not needed."""
        ...

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create what is missing. An existing topic keeps its partition count."""
        ...

    async def publish(self, events: Sequence[Envelope]) -> None:
        """Append outside of a unit of work. The outcome is unknown when it raises Retryable: publish again with the
        same `publish_seq`, consumers drop the double."""
        ...

    def session(self, group: str | None, topics: Sequence[str]) -> AbstractAsyncContextManager[Session]:
        """Join `group` (one active member per partition), or read everything on one's own with None."""
        ...

    async def close(self) -> None: ...
