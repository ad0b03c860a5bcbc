"""Cycles: the decisions of a scope, one unit of work at a time, under the scope's term.

The runner waits for the earliest timer itself, so a cycle may set its timers anew each time without waking itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from yard_domain.errors import Conflict, Retryable
from yard_store.database_errors import OutcomeUnknown
from yard_store.signals import ANY
from yard_store.unit_of_work import Ownership, Store, UnitOfWork

_log = structlog.get_logger("yard.cycle")

_BACKOFF_FIRST_SECONDS = 0.02
_BACKOFF_LIMIT_SECONDS = 2.0

Cycle = Callable[[UnitOfWork, str], Awaitable[bool]]
"""`cycle(uow, scope)`: decide, write, and say whether there is more to do at once. Bounded work per call."""


class ScopeRunner:
    """Runs one scope's cycle whenever the scope is dirty or a timer of it is due."""

    def __init__(self, store: Store, scope: str, owner: str, cycle: Cycle) -> None:
        self._store = store
        self._scope = scope
        self._owner = owner
        self._cycle = cycle
        self._dirty = asyncio.Event()

    def mark_dirty(self, scope: str) -> None:
        if scope in (self._scope, ANY):
            self._dirty.set()

    async def run(self, ownership: Ownership | None = None) -> None:
        """Serve the scope until cancelled, under `ownership`; without one, take the scope first.

        Raises Fenced when another owner took it, OutcomeUnknown when a COMMIT was lost (take it again and begin from
        what is stored), and whatever the cycle raises that is neither Retryable nor Conflict.
        """
        self._store.on_dirty(self.mark_dirty)
        try:
            if ownership is None:
                ownership = await self._store.take(self._scope, self._owner)
            self._dirty.set()
            due: datetime | None = None
            while True:
                await self._wait(due)
                due = await self._run_once(ownership)
        finally:
            self._store.off_dirty(self.mark_dirty)

    async def _wait(self, due: datetime | None) -> None:
        """Until dirty, or until the earliest timer is due."""
        if due is None:
            await self._dirty.wait()
            return
        seconds = (due - self._store.clock.now()).total_seconds()
        if seconds <= 0 or self._dirty.is_set():
            return

        async def set_when_due() -> None:
            await self._store.clock.sleep(seconds)
            self._dirty.set()

        timer = asyncio.create_task(set_when_due())
        try:
            await self._dirty.wait()
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    async def _run_once(self, ownership: Ownership) -> datetime | None:
        delay = _BACKOFF_FIRST_SECONDS
        while True:
            self._dirty.clear()
            try:
                async with self._store.unit_of_work() as uow:
                    await uow.fence(ownership)
                    more = await self._cycle(uow, self._scope)
                    due = await uow.next_due(self._scope)
            except OutcomeUnknown:
                raise
            except (Conflict, Retryable) as error:
                _log.warning("cycle failed, deciding again", scope=self._scope, error=str(error))
                await self._store.clock.sleep(delay)
                delay = min(delay * 2, _BACKOFF_LIMIT_SECONDS)
                continue
            delay = _BACKOFF_FIRST_SECONDS
            if not more:
                return due
