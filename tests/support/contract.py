"""A service small enough to see through: it writes one row per event, so that effects can be counted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import sqlalchemy as sa

if TYPE_CHECKING:
    from support.bus_harness import BusHarness

from yard_bus.consumer import Consumer, ConsumerSettings, Received
from yard_bus.protocol import Bus, PartitionRef, Record, Session
from yard_events.base import EventModel, wrap
from yard_events.envelope import Envelope, publish_sequence
from yard_events.registry import Policy, Topic, dead_letter_topic
from yard_runtime.service import Runtime
from yard_store.migrations import migrate
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import Store, UnitOfWork

ONE = Topic("yard.contract.one.v1", "tests", "key", Policy.DELETE, 3600)
MANY = Topic("yard.contract.many.v1", "tests", "key", Policy.DELETE, 3600, partitions=4)
OUT = Topic("yard.contract.out.v1", "tests", "key", Policy.DELETE, 3600)
DEAD = Topic(dead_letter_topic("contract"), "tests", "original", Policy.DELETE, 3600)
ALL = [ONE, MANY, OUT, DEAD]

MIGRATIONS = Path(__file__).parent / "contract_migrations"
TABLES = ServiceTables("contract")
EFFECTS = sa.Table(
    "effects",
    TABLES.metadata,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("key", sa.Text),
    sa.Column("n", sa.Integer),
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUICK = ConsumerSettings(backoff_first_seconds=0.001, backoff_limit_seconds=0.01)


class Counted(EventModel):
    """The one event of the suites; `topic` says where it goes."""

    TYPE: ClassVar[str] = "yard.contract.counted.v1"
    TOPIC: ClassVar[str] = ONE.name
    k: str = "a"
    n: int

    def key(self) -> str:
        return self.k


def event(
    n: int,
    key: str = "a",
    *,
    topic: str = ONE.name,
    value: bytes | None = None,
    kind: str | None = None,
    source: str = "tests",
    seq: int | None = None,
) -> Envelope:
    """An envelope; `value` and `kind` replace what the codec would have written."""
    made = wrap(Counted(k=key, n=n), event_id=f"evt-{key}{n}", source=source, time=AT, publish_seq=seq)
    return replace(made, topic=topic, value=made.value if value is None else value, type=kind or made.type)


async def contract_store(runtime: Runtime) -> Store:
    """The suites' service on this runtime. The schema is made by whoever comes first."""
    await migrate(runtime.engine, TABLES.schema, MIGRATIONS)
    return runtime.store(TABLES, "contract")


async def effects(store: Store) -> list[tuple[str, int]]:
    """What was done and committed, in order."""
    async with store.reading() as connection:
        rows = await connection.execute(sa.select(EFFECTS.c.key, EFFECTS.c.n).order_by(EFFECTS.c.id))
        return [(row.key, row.n) for row in rows]


async def parked(store: Store) -> list[tuple[str, int, bool]]:
    """(key, offset, whether it has an error of its own) of every parked record."""
    t = store.tables.parked
    async with store.reading() as connection:
        rows = await connection.execute(sa.select(t).order_by(t.c.topic, t.c.partition, t.c.log_offset))
        return [(row.key, row.log_offset, row.error is not None) for row in rows]


async def stored_offset(store: Store, topic: str = ONE.name, partition: int = 0) -> int | None:
    found = (await store.offsets([topic])).get((topic, partition))
    return found[1] if found is not None else None


class Recorder:
    """A handler that writes its effects, publishes one event for each, and knows what was committed.

    `before` is called for each event inside the transaction and may raise.
    """

    def __init__(self, before: Callable[[int, UnitOfWork], Any] | None = None) -> None:
        self._before = before
        self._changed = asyncio.Event()
        self.committed: list[int] = []
        self.batches: list[int] = []
        self.unknown: list[str] = []

    async def __call__(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        numbers: list[int] = []
        for received in batch:
            if received.data is None:
                self.unknown.append(received.envelope.type)
                continue
            data = cast(Counted, received.data)
            if self._before is not None:
                waits = self._before(data.n, uow)
                if waits is not None:
                    await waits
            numbers.append(data.n)
            await uow.connection.execute(sa.insert(EFFECTS).values(key=data.k, n=data.n))
            uow.emit(Answer(k=data.k, n=data.n), cause=received.envelope)
        uow.after_commit(lambda: self._after_commit(numbers))

    def _after_commit(self, numbers: list[int]) -> None:
        self.batches.append(len(numbers))
        self.committed += numbers
        self._changed.set()

    async def until(self, *numbers: int) -> None:
        """Wait until all these are committed."""
        async with asyncio.timeout(20):
            while not set(numbers) <= set(self.committed):
                self._changed.clear()
                await self._changed.wait()


class Answer(Counted):
    TYPE: ClassVar[str] = "yard.contract.answer.v1"
    TOPIC: ClassVar[str] = OUT.name


async def answers(harness: "BusHarness", count: int) -> list[int]:
    """The first `count` events that the service published, and a proof that there are no more."""
    await harness.flush()
    return await published(harness.first.bus, count)


async def published(bus: Bus, count: int) -> list[int]:
    """The same for a bus where nothing has to be flushed."""
    await bus.publish([event(-1, topic=OUT.name)])
    async with bus.session(None, [OUT.name]) as session:
        [ref] = await partitions(session)
        found: list[int] = []
        last: dict[str, int] = {}
        offset: int | None = None
        async with asyncio.timeout(20):
            while -1 not in found:
                for record in await session.read(ref, offset, 1000):
                    offset = record.following
                    # A relay that did not get to know whether it published does so again, under the same number.
                    source, sequence = record.headers["ce_source"], publish_sequence(record.headers)
                    if sequence is None or sequence > last.get(source, -1):
                        found.append(number(record))
                        last[source] = last.get(source, -1) if sequence is None else sequence
    assert found[-1] == -1
    assert len(found) == count + 1, f"expected {count} events, found {found}"
    return found[:-1]


def number(record: Record) -> int:
    return Counted.model_validate_json(record.value).n


async def partitions(session: Session) -> list[PartitionRef]:
    """What the session reads now."""
    async with aclosing(cast("AsyncIterator[Any]", session.assignments())) as assignments:  # type: ignore[type-var]
        return sorted(await anext(assignments))


async def active_in(session: Session) -> list[PartitionRef]:
    """What the session reads once it reads anything: it may be a standby before."""
    async with asyncio.timeout(20):
        async for refs in session.assignments():
            if refs:
                return sorted(refs)
    raise AssertionError("the session ended")


async def read(session: Session, ref: PartitionRef, count: int, offset: int | None = None) -> list[Record]:
    """The next `count` records."""
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await session.read(ref, found[-1].following if found else offset, count - len(found))
    return found


@asynccontextmanager
async def consuming(
    store: Store, bus: Bus, handlers: dict[str, Any], *, group: str | None = "contract", limit: int = 500
) -> AsyncIterator[tuple[Consumer, asyncio.Task[None]]]:
    """One consumer in one session; at the end of the block it is cancelled, as a killed process would leave it."""
    consumer = Consumer(store, handlers, replace(QUICK, batch_limit=limit))

    async def serve() -> None:
        async with bus.session(group, consumer.topics) as session:
            await consumer.run(session)

    task = asyncio.create_task(serve())
    try:
        yield consumer, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def ended_by(task: asyncio.Task[None]) -> set[type[BaseException]]:
    """The kinds of errors that end a consumer, out of their groups."""
    async with asyncio.timeout(20):
        await asyncio.wait([task])
    error = task.exception()
    assert error is not None, "it ended without an error"
    kinds: set[type[BaseException]] = set()
    frontier: list[BaseException] = [error]
    while frontier:
        one = frontier.pop()
        if isinstance(one, BaseExceptionGroup):
            frontier += one.exceptions
        else:
            kinds.add(type(one))
    return kinds


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for an observable state that nobody signals; `condition` may be a coroutine function."""
    async with asyncio.timeout(20):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.005)
    raise AssertionError(what)
