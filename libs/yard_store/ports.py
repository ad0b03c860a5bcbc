"""What the store asks of the outside: a clock, ids, and a place to append events inside a transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from yard_events.envelope import Envelope


class Clock(Protocol):
    """Time as a dependency, so that the same services run under virtual time."""

    def now(self) -> datetime:
        """The present, UTC, with zone."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self, prefix: str) -> str:
        """A fresh id `prefix-…`, unique and roughly sortable by time."""
        ...


class EventAppender(Protocol):
    """Appends the events of a unit of work inside its own transaction: to the log itself on the embedded bus, to an
    outbox on Kafka."""

    async def append(self, connection: AsyncConnection, events: Sequence[Envelope], now: datetime) -> None: ...
