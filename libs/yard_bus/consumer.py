"""The consumer loop: a batch of one partition, its effects and its offset in one transaction.

Order is kept whatever happens: a batch that fails is redone one by one, a record that fails is retried in place with
back-off, and one that can never succeed parks its key, with every later record of that key queued behind it.

A COMMIT of unknown outcome ends the session: whoever runs the consumer joins again, and offset, parked keys and
sequences are read from the database, where the outcome is known.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

import structlog

from yard_bus.dead_letters import PARKED_NEWS, load_parked_keys, park
from yard_bus.deduplication import SeenSequences
from yard_bus.following import follow
from yard_bus.protocol import OffsetGone, PartitionRef, Record, Session
from yard_bus.received import (
    ATTEMPTS_BEFORE_PARKING,
    ConsumerSettings,
    Handler,
    Received,
    processing,
    receive,
)
from yard_bus.retries import Retries
from yard_domain.errors import Conflict, Fenced, Permanent, Retryable
from yard_obs.catalogue import BATCH_SIZE, HANDLER_DURATION
from yard_store.database_errors import OutcomeUnknown
from yard_store.unit_of_work import Ownership, Store, UnitOfWork

__all__ = ["ATTEMPTS_BEFORE_PARKING", "Consumer", "ConsumerSettings", "Handler", "Received", "receive"]

_log = structlog.get_logger("yard.consumer")


class Consumer:
    """Consumes the given topics for one service; `handlers` maps each topic to its one handler."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        settings: ConsumerSettings | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        """`ownership`: the term under which this instance consumes; one that was taken over changes nothing more."""
        self._store = store
        self._handlers = handlers
        self._settings = settings or ConsumerSettings()
        self._ownership = ownership
        self._stopped: dict[PartitionRef, str] = {}
        self._parked: dict[tuple[str, int], set[str]] = {}

    @property
    def stopped(self) -> Mapping[PartitionRef, str]:
        """Partitions that cannot go on without people, and why: their offset or their topic is gone from the log."""
        return self._stopped

    @property
    def topics(self) -> list[str]:
        return sorted(self._handlers)

    async def run(self, session: Session) -> None:
        """Serve the session's partitions, whichever they are, until it ends.

        Raises, as an exception group, Retryable (session over), OutcomeUnknown (a COMMIT was lost: join again) or
        Fenced (taken over).
        """
        await follow(session, lambda refs: self.serve(session, refs))

    async def serve(self, session: Session, refs: Collection[PartitionRef]) -> None:
        """Serve these partitions, and retries of what is parked in them, until cancelled. Raises as `run` does."""
        self._parked = {(ref.topic, ref.partition): set() for ref in refs}
        self._stopped.clear()
        retries = Retries(self._store, self._handlers, self._parked, self._settings, self._ownership)
        async with asyncio.TaskGroup() as group:
            for ref in sorted(refs):
                name = f"{self._store.schema} {ref.topic}/{ref.partition}"
                group.create_task(self._serve(session, ref), name=name)
            group.create_task(retries.run(), name=f"{self._store.schema} retries")

    async def _serve(self, session: Session, ref: PartitionRef) -> None:
        loop = _PartitionLoop(
            self._store,
            session,
            ref,
            self._handlers[ref.topic],
            self._settings,
            self._ownership,
            self._parked[(ref.topic, ref.partition)],
        )
        try:
            await loop.run()
        except OffsetGone as error:
            # From anywhere else events would be skipped or doubled: this partition waits for people, others go on.
            self._stopped[ref] = str(error)
            _log.error(
                "partition stopped",
                schema=self._store.schema,
                topic=ref.topic,
                partition=ref.partition,
                error=str(error),
            )


class _PartitionLoop:
    def __init__(
        self,
        store: Store,
        session: Session,
        ref: PartitionRef,
        handler: Handler,
        settings: ConsumerSettings,
        ownership: Ownership | None,
        parked: set[str],
    ) -> None:
        self._store = store
        self._session = session
        self._ref = ref
        self._handler = handler
        self._settings = settings
        self._position: int | None = None
        self._ownership = ownership
        self._parked = parked
        self._seen = SeenSequences(store.tables, ref)

    async def run(self) -> None:
        await self._resume()
        while True:
            records = await self._session.read(self._ref, self._position, self._settings.batch_limit)
            await self._consume(records)

    async def _resume(self) -> None:
        """Everything in memory comes from the database: the offset, the parked keys, the sequences seen."""
        stored = (await self._store.offsets([self._ref.topic])).get((self._ref.topic, self._ref.partition))
        if stored is not None and stored[0] != self._ref.incarnation:
            raise OffsetGone(
                f"{self._ref.topic} was deleted and made again: offset {stored[1]} of {stored[0]} means nothing in "
                f"{self._ref.incarnation}"
            )
        self._position = stored[1] if stored is not None else None
        # A unit of work, so that no retry comes in between: it would take out keys that are about to be put in.
        async with self._store.unit_of_work() as uow:
            self._parked.clear()
            self._parked |= await load_parked_keys(uow.connection, self._store.tables, self._ref)
            await self._seen.load(uow.connection)

    async def _consume(self, records: Sequence[Record]) -> None:
        try:
            tries = 1 if len(records) > 1 else self._settings.attempts_before_parking
            await self._with_backoff(records, give_up_after=tries)
        except (Fenced, OutcomeUnknown, asyncio.CancelledError):
            raise
        except Exception as error:
            if len(records) > 1:
                for record in records:
                    await self._consume([record])
            else:
                await self._park(records[0], error)

    async def _with_backoff(self, records: Sequence[Record], give_up_after: int) -> None:
        """In place: Retryable errors are retried for ever, Permanent ones never, others `give_up_after` times."""
        delay = self._settings.backoff_first_seconds
        failures = 0
        while True:
            try:
                await self._transaction(records)
                return
            except (Fenced, Permanent, OutcomeUnknown, asyncio.CancelledError):
                self._seen.forget_unsaved()
                raise
            except (Retryable, Conflict) as error:
                self._seen.forget_unsaved()
                _log.warning("retrying", topic=self._ref.topic, partition=self._ref.partition, error=str(error))
            except Exception as error:
                self._seen.forget_unsaved()
                failures += 1
                _log.error("handler failed", topic=self._ref.topic, failures=failures, exc_info=error)
                if failures >= give_up_after:
                    raise
            await self._store.clock.sleep(delay)
            delay = min(delay * 2, self._settings.backoff_limit_seconds)

    async def _transaction(self, records: Sequence[Record]) -> None:
        began = time.perf_counter()
        async with self._store.unit_of_work() as uow:
            last = records[-1].following
            await self._advance(uow, last)
            fresh = [record for record in records if self._seen.is_new(record)]
            behind = [record for record in fresh if record.key in self._parked]
            if behind:
                await park(uow, self._store.tables, behind, error=None)
                uow.tell(PARKED_NEWS, "")  # what they wait for may have been decided while they came
            received = [receive(record) for record in fresh if record.key not in self._parked]
            if received:
                with processing(self._store.schema, received):
                    await self._handler(received, uow)
            await self._seen.save(uow.connection)
        self._position = last
        self._seen.saved()
        self._handled(len(records), time.perf_counter() - began)

    def _handled(self, count: int, seconds: float) -> None:
        labels = {"service": self._store.schema, "topic": self._ref.topic}
        self._store.metrics.histogram(BATCH_SIZE).record(count, **labels)
        self._store.metrics.histogram(HANDLER_DURATION).record(seconds, **labels)

    async def _advance(self, uow: UnitOfWork, last: int) -> None:
        ref = self._ref
        await uow.advance(ref.topic, ref.partition, self._position, last, ref.incarnation, self._ownership)

    async def _park(self, record: Record, error: Exception) -> None:
        _log.error("parking key", topic=record.ref.topic, key=record.key, type=record.type, error=str(error))
        delay = self._settings.backoff_first_seconds
        while True:
            try:
                await self._park_once(record, f"{type(error).__name__}: {error}")
                return
            except OutcomeUnknown:
                raise
            except Retryable:
                self._seen.forget_unsaved()
                await self._store.clock.sleep(delay)
                delay = min(delay * 2, self._settings.backoff_limit_seconds)

    async def _park_once(self, record: Record, error: str) -> None:
        async with self._store.unit_of_work() as uow:
            last = record.following
            await self._advance(uow, last)
            await park(uow, self._store.tables, [record], error=error)
            self._seen.is_new(record)
            await self._seen.save(uow.connection)
        self._position = last
        self._parked.add(record.key)
        self._seen.saved()
