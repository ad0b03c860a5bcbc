"""Getting the journal's spool onto the bus: in order, at least once, with sequences by which doubles are dropped."""

import asyncio

import structlog

from yard_agent.journal import Journal
from yard_bus.protocol import Bus
from yard_domain.errors import Retryable
from yard_store.ports import Clock

_log = structlog.get_logger("yard.agent")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0


class Publisher:
    """One per node. What was published is struck from the spool with the journal's next transaction, not one of its
    own: after a crash in between it is published again, and dropped by those who saw it."""

    def __init__(self, journal: Journal, bus: Bus, clock: Clock, node: str, batch: int) -> None:
        self._journal = journal
        self._bus = bus
        self._clock = clock
        self._node = node
        self._batch = batch
        self._wake = asyncio.Event()
        self._published = 0
        self._struck = 0
        self.away: str | None = None
        """Why the bus takes nothing at the moment: then nothing that can be left out should be added."""

    def wake(self) -> None:
        """There is something new in the spool."""
        self._wake.set()

    def strike_published(self) -> None:
        """Call inside of a transaction of the journal."""
        if self._published > self._struck:
            self._journal.mark_published(self._published)
            self._struck = self._published

    async def run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._wake.clear()
            events = self._journal.pending(self._batch, self._published)
            if not events:
                await self._wake.wait()
                continue
            try:
                await self._bus.publish(events)
            except Retryable as error:
                if self.away is None:
                    _log.warning("the bus is away, events wait in the journal", node=self._node, error=str(error))
                self.away = str(error)
                await self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            if self.away is not None:
                _log.info("the bus is back", node=self._node)
                self.away = None
            pause = _FIRST_PAUSE_SECONDS
            self._published = events[-1].publish_seq or self._published
