"""Parked keys that somebody wants tried again: inside of the service, in order, like the first time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from yard_bus.dead_letters import (
    PARKED_NEWS,
    OfKey,
    give_up_again,
    handled,
    next_parked,
    parked_keys,
    requested_keys,
)
from yard_bus.protocol import Record
from yard_bus.received import ConsumerSettings, Handler, processing, receive
from yard_domain.errors import Conflict, Fenced, Retryable
from yard_store.database_errors import OutcomeUnknown
from yard_store.unit_of_work import Ownership, Store, UnitOfWork

_log = structlog.get_logger("yard.consumer")


class Retries:
    """Works beside the partition loops of one consumer and shares with them which keys are parked.

    Units of work come one at a time, and the loops look at the shared sets inside of theirs: a record that arrives
    while its key is tried again is queued behind, or handled after, never in between.
    """

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        parked: Mapping[tuple[str, int], set[str]],
        settings: ConsumerSettings,
        ownership: Ownership | None,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._parked = parked
        self._settings = settings
        self._ownership = ownership
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. Raises Fenced and OutcomeUnknown, as the consumer does."""

        def wake(_key: str) -> None:
            self._wake.set()

        self._store.on_news(PARKED_NEWS, wake)
        try:
            while True:
                self._wake.clear()
                await self._patiently(self._round)
                await self._wake.wait()
        finally:
            self._store.off_news(PARKED_NEWS, wake)

    async def _round(self) -> None:
        async with self._store.reading() as connection:
            wanted = await requested_keys(connection, self._store.tables)
        for key in wanted:
            if (key.topic, key.partition) in self._parked:
                await self._try(key)
        await self._forget_discarded()

    async def _try(self, key: OfKey) -> None:
        """Handle what is parked of the key, oldest first, until nothing is left or one fails again."""
        while True:
            tried: list[Record] = []
            try:
                if not await self._try_next(key, tried):
                    return
            except (Retryable, Conflict, Fenced, asyncio.CancelledError):
                raise
            except Exception as error:
                if not tried:
                    raise
                await self._give_up(tried[0], f"{type(error).__name__}: {error}")
                return

    async def _try_next(self, key: OfKey, tried: list[Record]) -> bool:
        """`tried` gets the record, also when this raises."""
        async with self._store.unit_of_work() as uow:
            await self._fence(uow)
            record = await next_parked(uow.connection, self._store.tables, key)
            if record is None:
                self._parked[(key.topic, key.partition)].discard(key.key)
                return False
            tried.append(record)
            received = receive(record)
            with processing(self._store.schema, [received]):
                await self._handlers[key.topic]([received], uow)
            await handled(uow, self._store.tables, record)
        _log.info("parked record handled", topic=key.topic, key=key.key, offset=record.offset)
        return True

    async def _give_up(self, record: Record, error: str) -> None:
        _log.error("parked record failed again", topic=record.ref.topic, key=record.key, error=error)
        async with self._store.unit_of_work() as uow:
            await self._fence(uow)
            await give_up_again(uow, self._store.tables, record, error)

    async def _fence(self, uow: UnitOfWork) -> None:
        if self._ownership is not None:
            await uow.fence(self._ownership, shared=True)

    async def _forget_discarded(self) -> None:
        """Keys of which nothing is parked any more flow again."""
        if not any(self._parked.values()):
            return
        async with self._store.unit_of_work() as uow:
            left = await parked_keys(uow.connection, self._store.tables)
            for place, keys in self._parked.items():
                keys &= left.get(place, set())

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        delay = self._settings.backoff_first_seconds
        while True:
            try:
                await work()
                return
            except OutcomeUnknown:
                raise
            except (Retryable, Conflict) as error:
                _log.warning("retries of parked keys wait", error=str(error))
                await self._store.clock.sleep(delay)
                delay = min(delay * 2, self._settings.backoff_limit_seconds)
