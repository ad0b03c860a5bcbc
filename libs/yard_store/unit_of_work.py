"""The unit of work: state, outgoing events, consumed offset, timers and ownership in ONE transaction.

Handlers and cycles get a `UnitOfWork`; they never commit. Events are appended at the very end, so that the locks that
order the log are held for as short as possible.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from yard_domain.errors import Conflict, Fenced, Permanent, Retryable
from yard_events.base import EventModel, wrap
from yard_events.envelope import MAX_KEY_BYTES, MAX_VALUE_BYTES, Envelope
from yard_obs.catalogue import CONVERSATION_ID, DESTINATION, JOB_ID, MESSAGE_ID
from yard_obs.metrics import Metrics, no_metrics
from yard_obs.tracing import TraceHeaders, sent
from yard_store import signals
from yard_store.bulk import bulk_delete, bulk_insert
from yard_store.database_errors import OutcomeUnknown, database_errors
from yard_store.ports import Clock, EventAppender, Ids
from yard_store.tables import ServiceTables

SCOPE_NEWS = "scope"
"""A scope is dirty; key: the scope."""
EVENT_NEWS = "events"
"""Events were appended, and a relay may have to carry them."""


@dataclass(frozen=True, slots=True)
class Timer:
    scope: str
    kind: str
    key: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Ownership:
    """Proof of having taken a scope: valid as long as nobody raised its term."""

    scope: str
    term: int


class UnitOfWork:
    """One open transaction of one service. Use `connection` for statements, `emit` for events."""

    def __init__(self, store: "Store", connection: AsyncConnection) -> None:
        self._store = store
        self.connection = connection
        self.now = store.clock.now()
        self._events: list[Envelope] = []
        self._timers: dict[tuple[str, str, str], datetime | None] = {}
        self._after_commit: list[Callable[[], None]] = []
        self._news: defaultdict[str, set[str]] = defaultdict(set)
        self._timer_scopes: set[str] = set()
        self._awaited_scopes: set[str] = set()
        self.finished = False

    def new_id(self, prefix: str) -> str:
        return self._store.ids.new(prefix)

    def emit(
        self,
        event: EventModel,
        cause: Envelope | None = None,
        trace: TraceHeaders | None = None,
        correlation_id: str | None = None,
        about: Mapping[str, str | int] | None = None,
    ) -> None:
        """Publish `event` when, and only when, this transaction commits.

        `cause` links it to the event that led to it. `trace` is the context it continues where that event is no longer
        at hand (a cycle that decides later); else the cause's, else the current span's. `correlation_id` is the
        conversation it belongs to; else the cause's. `about`: attributes of its span, beside what the event says.
        """
        event_id = self._store.ids.new("evt")
        parent = trace or (cause.extra if cause is not None else None)
        if correlation_id is None and cause is not None:
            correlation_id = cause.correlation_id or cause.id
        attributes: dict[str, str | int] = {
            DESTINATION: event.TOPIC,
            MESSAGE_ID: event_id,
            **({CONVERSATION_ID: correlation_id} if correlation_id is not None else {}),
            **({JOB_ID: job_id} if (job_id := getattr(event, "job_id", None)) is not None else {}),
            **(about or {}),
        }
        envelope = wrap(
            event,
            event_id=event_id,
            source=self._store.source,
            time=self.now,
            correlation_id=correlation_id,
            causation_id=cause.id if cause is not None else None,
            trace=sent(event.TOPIC, attributes, parent),
        )
        if len(envelope.value) > MAX_VALUE_BYTES:
            # Here, where it fails for the one who made it: in the outbox it would stand in everybody's way.
            raise Permanent(
                f"{event.TYPE} about {envelope.subject}: {len(envelope.value)} bytes, {MAX_VALUE_BYTES} may travel"
            )
        if len(envelope.key) + len(envelope.subject) > MAX_KEY_BYTES:
            raise Permanent(f"{event.TYPE}: key and subject have more than {MAX_KEY_BYTES} characters")
        self._events.append(envelope)

    def emit_raw(self, envelope: Envelope) -> None:
        """Publish what is no event of ours, as it is: what a dead-letter topic gets."""
        self._events.append(envelope)

    def mark_dirty(self, scope: str) -> None:
        """After the commit, the scope's cycle runs, in whichever instance that is."""
        self.tell(SCOPE_NEWS, scope)

    def tell(self, kind: str, key: str) -> None:
        """After the commit, those who listen to this kind of news are called, in every instance of the service."""
        self._news[kind].add(key)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run `action` once the commit is known to have succeeded: only there may memory follow the tables."""
        self._after_commit.append(action)

    def set_timer(self, scope: str, kind: str, key: str, due_at: datetime) -> None:
        """(scope, kind, key) is due at `due_at`; an earlier setting is replaced."""
        self._timers[(scope, kind, key)] = due_at
        self._timer_scopes.add(scope)

    def clear_timer(self, scope: str, kind: str, key: str) -> None:
        self._timers[(scope, kind, key)] = None

    async def take_due_timers(self, scope: str, limit: int = 500) -> list[Timer]:
        """Remove and return the scope's timers that are due by `now`, earliest first."""
        await self._write_timers()
        t = self._store.tables.timers
        due = sa.select(t.c.kind, t.c.key).where(t.c.scope == scope, t.c.due_at <= self.now)
        due = due.order_by(t.c.due_at, t.c.kind, t.c.key).limit(limit)
        taken = await self.connection.execute(
            sa.delete(t)
            .where(t.c.scope == scope, sa.tuple_(t.c.kind, t.c.key).in_(due))
            .returning(t.c.kind, t.c.key, t.c.due_at)
        )
        timers = [Timer(scope, row.kind, row.key, row.due_at) for row in taken]
        return sorted(timers, key=lambda timer: (timer.due_at, timer.kind, timer.key))

    async def next_due(self, scope: str) -> datetime | None:
        """When the scope's earliest timer is due; None without timers. Timers set in this unit of work count.

        Who asks waits for it himself: after the commit the scope is not woken for timers that were set here.
        """
        await self._write_timers()
        self._awaited_scopes.add(scope)
        t = self._store.tables.timers
        return await self.connection.scalar(sa.select(sa.func.min(t.c.due_at)).where(t.c.scope == scope))

    async def advance(
        self,
        topic: str,
        partition: int,
        old: int | None,
        new: int,
        incarnation: str,
        ownership: "Ownership | None" = None,
    ) -> None:
        """Compare-and-set the consumed offset, under the consumer's term when there is one. Raises Fenced when another
        consumer moved it or took over: it waits for this transaction, and this one changes nothing after it."""
        if ownership is not None:
            await self.fence(ownership, shared=True)
        t = self._store.tables.offsets
        values = {"topic": topic, "partition": partition, "incarnation": incarnation, "next_offset": new}
        if old is None:
            statement = insert(t).values(**values).on_conflict_do_nothing()
            done = await self.connection.execute(statement)
        else:
            done = await self.connection.execute(
                sa.update(t)
                .where(
                    t.c.topic == topic,
                    t.c.partition == partition,
                    t.c.next_offset == old,
                    t.c.incarnation == incarnation,
                )
                .values(next_offset=new)
            )
        if done.rowcount != 1:
            raise Fenced(f"{self._store.schema}: the offset of {topic}/{partition} is no longer {old}")

    async def fence(self, ownership: Ownership, *, shared: bool = False) -> None:
        """Hold the scope's ownership row to the end of the transaction. Raises Fenced when its term was raised.

        `shared` lets others of the same term hold it too; raising the term waits for all of them.
        """
        t = self._store.tables.ownership
        held = sa.select(t.c.term).where(t.c.scope == ownership.scope).with_for_update(read=shared)
        term = await self.connection.scalar(held)
        if term != ownership.term:
            raise Fenced(f"{self._store.schema}: {ownership.scope} is owned by term {term}, not {ownership.term}")

    async def hold(self, scope: str, instance: str) -> None:
        """Keep the scope's cycle out to the end of the transaction: for writes over HTTP, which have no term of their
        own. Where instances hear of one another any may write, elsewhere only the owner.

        Raises Retryable while the scope has no owner, or when it would have to be this instance and is not.
        """
        t = self._store.tables.ownership
        owner = await self.connection.scalar(sa.select(t.c.owner).where(t.c.scope == scope).with_for_update())
        if owner is None:
            raise Retryable(f"{self._store.schema} is still starting")
        if owner != instance and not self._store.shared:
            raise Retryable(f"{self._store.schema} is not active here")

    async def ledger_time(self, scope: str) -> datetime:
        """`max(now, last + 1 µs)` of the scope, stored: strictly increasing whatever the wall clock does."""
        t = self._store.tables.ownership
        last = await self.connection.scalar(sa.select(t.c.last_time).where(t.c.scope == scope).with_for_update())
        time = self.now if last is None else max(self.now, last + timedelta(microseconds=1))
        done = await self.connection.execute(sa.update(t).where(t.c.scope == scope).values(last_time=time))
        if done.rowcount != 1:
            raise Conflict(f"{self._store.schema}: scope {scope} has no owner, so it has no ledger time")
        return time

    async def finish(self) -> None:
        """Write timers, then append events: the last statements before the commit. Called by the store."""
        await self._write_timers()
        if self._events:
            await self._store.appender.append(self.connection, self._events, self.now)
            self.tell(EVENT_NEWS, "")
        for scope in self._timer_scopes - self._awaited_scopes:
            self.tell(SCOPE_NEWS, scope)
        if self._store.shared and self._news:
            hints = {kind: sorted(keys) for kind, keys in self._news.items()}
            await signals.send(self.connection, self._store.schema, self._store.name, hints)
        self.finished = True

    async def _write_timers(self) -> None:
        changed = [
            {"scope": scope, "kind": kind, "key": key, "due_at": due}
            for (scope, kind, key), due in sorted(self._timers.items())
        ]
        self._timers.clear()
        t = self._store.tables.timers
        await bulk_insert(self.connection, t, [row for row in changed if row["due_at"] is not None], update=["due_at"])
        await bulk_delete(self.connection, t, [row for row in changed if row["due_at"] is None])

    def committed(self) -> None:
        for action in self._after_commit:
            action()
        self.spread_news()

    def spread_news(self) -> None:
        """Cycles look at what was written: at the scopes marked dirty, and at those whose timers changed."""
        for kind, keys in self._news.items():
            for key in sorted(keys):
                self._store.notify(kind, key)


class Store:
    """One service's access to its schema."""

    def __init__(
        self,
        *,
        engine: AsyncEngine,
        tables: ServiceTables,
        source: str,
        appender: EventAppender,
        clock: Clock,
        ids: Ids,
        name: str = "only",
        shared: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        """`name` tells this instance from others of the service; `shared`: there may be some, and they are to hear
        what is committed here."""
        self.engine = engine
        self.name = name
        self.shared = shared
        self.metrics = metrics or no_metrics()
        self.tables = tables
        self.schema = tables.schema
        self.source = source
        self.appender = appender
        self.clock = clock
        self.ids = ids
        self._serial = asyncio.Lock()
        self._listeners: defaultdict[str, list[Callable[[str], None]]] = defaultdict(list)

    def sibling(self) -> "Store":
        """The same instance with a queue of its own for units of work; news of either reach the listeners of both."""
        other = Store(
            engine=self.engine,
            tables=self.tables,
            source=self.source,
            appender=self.appender,
            clock=self.clock,
            ids=self.ids,
            name=self.name,
            shared=self.shared,
            metrics=self.metrics,
        )
        other._listeners = self._listeners
        return other

    def on_news(self, kind: str, listener: Callable[[str], None]) -> None:
        """Call `listener(key)` after commits that told of `kind`, here and in other instances. Only hints: the same may
        come twice, and `signals.ANY` stands for all keys."""
        self._listeners[kind].append(listener)

    def off_news(self, kind: str, listener: Callable[[str], None]) -> None:
        self._listeners[kind].remove(listener)

    def notify(self, kind: str, key: str) -> None:
        for listener in tuple(self._listeners[kind]):
            listener(key)

    def heard(self, kind: str, key: str) -> None:
        """What another instance told; or that listening began, and anything may have happened before."""
        if kind != signals.LISTENING:
            self.notify(kind, key)
            return
        for known in tuple(self._listeners):
            self.notify(known, signals.ANY)

    def on_dirty(self, listener: Callable[[str], None]) -> None:
        self.on_news(SCOPE_NEWS, listener)

    def off_dirty(self, listener: Callable[[str], None]) -> None:
        self.off_news(SCOPE_NEWS, listener)

    def notify_dirty(self, scope: str) -> None:
        self.notify(SCOPE_NEWS, scope)

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncGenerator[UnitOfWork]:
        """A transaction that commits at the end of the block and rolls back on any exception.

        One at a time per instance: a service's handlers and cycles touch the same rows, so letting them overlap would
        buy lock waits and deadlocks, not speed. Other instances are kept out by offsets and terms, not by this lock.

        A lost connection, a deadlock or a refused connection becomes Retryable. When the connection is lost at the
        COMMIT itself it is OutcomeUnknown: the caller reads offset and tables again.
        """
        async with self._serial:
            uow: UnitOfWork | None = None
            try:
                with database_errors():
                    async with self.engine.connect() as connection, connection.begin():
                        uow = UnitOfWork(self, connection)
                        yield uow
                        await uow.finish()
            except BaseException as error:
                if uow is not None and uow.finished:
                    # It may have been committed, and then cycles must look. Looking in vain is harmless.
                    uow.spread_news()
                    if isinstance(error, Retryable):
                        raise OutcomeUnknown(str(error)) from error
                raise
            uow.committed()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A read-only transaction with one consistent snapshot."""
        with database_errors():
            async with self.engine.connect() as connection:
                # Part of the BEGIN: no statement of its own.
                yield await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    async def take(self, scope: str, owner: str) -> Ownership:
        """Become the scope's owner by raising its term; every earlier owner is fenced from now on."""
        t = self.tables.ownership
        async with self.unit_of_work() as uow:
            statement = (
                insert(t)
                .values(scope=scope, term=1, owner=owner)
                .on_conflict_do_update(index_elements=[t.c.scope], set_={"term": t.c.term + 1, "owner": owner})
                .returning(t.c.term)
            )
            term = await uow.connection.scalar(statement)
            assert term is not None
            return Ownership(scope, term)

    async def offsets(self, topics: Sequence[str]) -> dict[tuple[str, int], tuple[str, int]]:
        """(topic, partition) → (incarnation, next offset) of what this service consumed."""
        t = self.tables.offsets
        async with self.reading() as connection:
            found = await connection.execute(sa.select(t).where(t.c.topic.in_(list(topics))))
            return {(row.topic, row.partition): (row.incarnation, row.next_offset) for row in found}
