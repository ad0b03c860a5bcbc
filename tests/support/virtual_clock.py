"""A clock that the test moves, and on which others may wait."""

import asyncio
from datetime import UTC, datetime, timedelta


class VirtualClock:
    """Implements `yard_store.ports.Clock`. `sleeps` is what was asked for, in order."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
        self._sleepers: list[tuple[datetime, asyncio.Event]] = []
        self._asleep = asyncio.Event()
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        entry = (self._now + timedelta(seconds=seconds), asyncio.Event())
        self._sleepers.append(entry)
        self._asleep.set()
        try:
            await entry[1].wait()
        finally:
            self._sleepers.remove(entry)

    def advance(self, seconds: float) -> None:
        """Time goes on (or, below zero, back) and wakes whoever slept until then."""
        self._now += timedelta(seconds=seconds)
        for until, event in self._sleepers:
            if until <= self._now:
                event.set()

    async def someone_sleeps(self) -> None:
        """Until somebody waits on this clock."""
        async with asyncio.timeout(20):
            while not any(not event.is_set() for _, event in self._sleepers):
                self._asleep.clear()
                await self._asleep.wait()
