"""A service under test, fed record by record as its consumer would, at a time the test sets."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from yard_bus.consumer import Handler, Received, receive
from yard_bus.protocol import PartitionRef, Record
from yard_events.base import EventModel, wrap
from yard_runtime.service import Runtime
from yard_store.unit_of_work import Store

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class ManualClock:
    """Time that only the test moves."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing under test may sleep, asked for {seconds} s")


def at(runtime: Runtime, clock: ManualClock) -> Runtime:
    return replace(runtime, clock=clock)


class Feed:
    """One partition of one topic. `records` is the log so far, so that a test can deliver it again."""

    def __init__(self, store: Store, handler: Handler, source: str) -> None:
        self._store = store
        self._handler = handler
        self._source = source
        self.records: list[Record] = []

    def append(self, events: Sequence[EventModel]) -> list[Record]:
        """Into the log, not delivered."""
        added: list[Record] = []
        for event in events:
            offset = len(self.records) + len(added)
            envelope = wrap(event, event_id=f"evt-{offset}", source=self._source, time=self._store.clock.now())
            ref = PartitionRef(event.TOPIC, 0, "test")
            added.append(Record(ref, offset, envelope.key, envelope.type, envelope.headers(), envelope.value))
        self.records += added
        return added

    async def deliver(self, records: Sequence[Record]) -> None:
        received: list[Received] = [receive(record) for record in records]
        async with self._store.unit_of_work() as uow:
            await self._handler(received, uow)

    async def send(self, *events: EventModel) -> None:
        """One batch."""
        await self.deliver(self.append(events))
