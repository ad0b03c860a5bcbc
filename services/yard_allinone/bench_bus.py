"""`yard bench bus`: events per second through outbox, relay, consumer and transaction.

A service of the benchmark's own emits events in units of work; another one consumes them, one row and one offset per
batch, as every service does. On the embedded bus the outbox is the log and there is no relay.
"""

import asyncio
import cProfile
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
import uvloop
from rich.console import Console
from rich.progress import Progress

from yard_bus.consumer import Received
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_bus.postgres import PostgresBus
from yard_events.base import EventModel
from yard_events.registry import Policy, Topic, dead_letter_topic
from yard_obs.logs import configure_logs
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.service import EventService, Runtime
from yard_store.common_schema import create_common_tables, create_outbox
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings
from yard_store.engine import create_engine
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import UnitOfWork

_TOPIC = "yard.bench.events.v1"
_TOPICS = [
    Topic(_TOPIC, "bench", "key", Policy.DELETE, 3600),
    *(Topic(dead_letter_topic(name), name, "original", Policy.DELETE, 3600) for name in ("bench_from", "bench_to")),
]
_PAYLOAD = "x" * 400


class BenchEvent(EventModel):
    """About as large as a decision about a job."""

    TYPE: ClassVar[str] = "yard.bench.event.v1"
    TOPIC: ClassVar[str] = _TOPIC
    n: int
    k: str
    payload: str = _PAYLOAD

    def key(self) -> str:
        return self.k


@dataclass(frozen=True, slots=True)
class BusOptions:
    events: int
    batch: int
    output: str
    kafka: str | None
    profile: Path | None


class _Counting:
    """A handler that writes one row per batch, and knows when all events are committed."""

    def __init__(self, table: sa.Table, events: int) -> None:
        self._table = table
        self._left = events
        self.batches = 0
        self.done = asyncio.Event()
        self.waits: list[float] = []

    async def __call__(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        await uow.connection.execute(sa.insert(self._table).values(n=len(batch)))
        now = uow.now
        waits = [(now - received.envelope.time).total_seconds() * 1000 for received in batch]
        uow.after_commit(lambda: self._committed(waits))

    def _committed(self, waits: list[float]) -> None:
        self.batches += 1
        self.waits += waits
        self._left -= len(waits)
        if self._left <= 0:
            self.done.set()


def main(options: BusOptions) -> int:
    console = Console(stderr=True)
    configure_logs(level="WARNING", json_lines=False)
    if options.output not in ("table", "json"):
        console.print("yard bench: --output is table or json")
        return 2
    profile = cProfile.Profile() if options.profile is not None else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_measure(options, console, profile))
    if profile is not None and options.profile is not None:
        options.profile.mkdir(parents=True, exist_ok=True)
        profile.dump_stats(options.profile / f"bus-{os.getpid()}.prof")
    if options.output == "json":
        print(json.dumps(report, indent=2))
    else:
        print(
            f"{report['events_per_s']} events per second ({report['events']} in {report['seconds']} s, "
            f"{report['batches']} batches); emit to commit p50 {report['emit_to_commit_ms']['p50']} ms"
        )
    return 0


async def _measure(options: BusOptions, console: Console, profile: cProfile.Profile | None) -> dict[str, Any]:
    async with _runtime(options.kafka) as runtime:
        source, target = ServiceTables("bench_from"), ServiceTables("bench_to")
        effects = sa.Table("effects", target.metadata, sa.Column("n", sa.Integer))
        await _make_schemas(runtime, [source, target])
        counting = _Counting(effects, options.events)
        active = [asyncio.Event(), asyncio.Event()]
        # The sender consumes nothing that anybody sends: it is there for its relay.
        handlers = {"bench_from": {dead_letter_topic("bench_to"): _ignore}, "bench_to": {_TOPIC: counting}}
        store = runtime.store(source, "bench_from")
        services = [
            EventService(
                tables.schema, of, runtime.bus, "bench", handlers[tables.schema], on_activate=_setting(active[n])
            )
            for n, (tables, of) in enumerate([(source, store), (target, runtime.store(target, "bench_to"))])
        ]
        running = [asyncio.create_task(service.run(lambda: None)) for service in services]
        try:
            await asyncio.gather(*(event.wait() for event in active))
            began = time.perf_counter()
            if profile is not None:
                profile.enable()
            with Progress(console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("events", total=options.events)
                for first in range(0, options.events, options.batch):
                    async with store.unit_of_work() as uow:
                        for n in range(first, min(first + options.batch, options.events)):
                            uow.emit(BenchEvent(n=n, k=f"key-{n % 64}"))
                    progress.update(task, completed=first + options.batch)
            await counting.done.wait()
            seconds = time.perf_counter() - began
            if profile is not None:
                profile.disable()
        finally:
            for service in running:
                service.cancel()
            await asyncio.wait(running)
    waits = sorted(counting.waits)
    return {
        "bus": "postgres" if options.kafka is None else "kafka",
        "events": options.events,
        "seconds": round(seconds, 3),
        "events_per_s": round(options.events / seconds, 1),
        "batches": counting.batches,
        "emit_to_commit_ms": {
            "p50": round(waits[len(waits) // 2], 1),
            "p99": round(waits[int(len(waits) * 0.99)], 1),
        },
        "machine": {"cores": os.cpu_count()},
    }


def _setting(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def activate() -> None:
        event.set()

    return activate


async def _ignore(_batch: Sequence[Received], _uow: UnitOfWork) -> None:
    return None


async def _make_schemas(runtime: Runtime, services: Sequence[ServiceTables]) -> None:
    async with runtime.engine.begin() as connection:
        for tables in services:
            await connection.execute(sa.text(f"CREATE SCHEMA {tables.schema}"))
            await connection.run_sync(lambda sync, name=tables.schema: _common(sync, name))  # type: ignore[misc]
        await connection.execute(sa.text("CREATE TABLE bench_to.effects (n int)"))


def _common(connection: sa.Connection, schema: str) -> None:
    class Statements:
        """As much of Alembic's operations as the common tables need."""

        @staticmethod
        def execute(statement: str) -> None:
            connection.execute(sa.text(statement))

    create_common_tables(Statements, schema)
    create_outbox(Statements, schema)


@asynccontextmanager
async def _runtime(kafka: str | None) -> AsyncIterator[Runtime]:
    """A PostgreSQL of the benchmark's own, and its own topics."""
    with tempfile.TemporaryDirectory(prefix="yard-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: S103 - PostgreSQL passes through as an account of its own
        postgres = EmbeddedPostgres(EmbeddedSettings(data_dir=Path(folder) / "postgres"))
        engine = create_engine(await asyncio.to_thread(postgres.ensure_running), application="yard bench bus")
        clock = SystemClock()
        ids = SystemIds(clock)
        try:
            if kafka is None:
                embedded = PostgresBus(engine, clock=clock, ids=ids)
                await embedded.migrate()
                await embedded.ensure_topics(_TOPICS)
                yield Runtime(engine, embedded, clock, ids, "bench", "")
                return
            bus = KafkaBus(KafkaOptions(kafka, prefix=f"bench-{secrets.token_hex(4)}."), clock=clock)
            await bus.ensure_topics(_TOPICS)
            yield Runtime(engine, bus, clock, ids, "bench", "")
            await bus.close()
        finally:
            await engine.dispose()
            await asyncio.to_thread(postgres.stop, "immediate")
