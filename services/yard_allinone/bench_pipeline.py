"""`yard bench pipeline`: jobs per second and the time from submission to start, through all real services."""

import asyncio
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from yard_allinone.bench_installation import Running, free_address, running_installation
from yard_allinone.load_client import LoadConnection
from yard_allinone.process import PROFILE_VARIABLE
from yard_allinone.up import UpOptions
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_bus.postgres import PostgresBus
from yard_bus.protocol import Bus, Record, Session
from yard_events.registry import CONSUMING_SERVICES, JOBS_EVENTS, NODES_EVENTS, TOPICS
from yard_runtime.clock import SystemClock, SystemIds
from yard_store.engine import create_engine

_NODES = 4
_DEVICES = "32xH100-80GB"
_TERMINAL = frozenset(f"yard.jobs.{state}.v1" for state in ("succeeded", "failed", "cancelled", "expired"))
_SAMPLE_SECONDS = 2.0

_STARTED = "yard.nodes.started.v1"
_EVENTS = sa.text(
    "SELECT t.name, count(*) AS events FROM yard_bus.log l JOIN yard_bus.topic t USING (topic_id) GROUP BY t.name"
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    jobs: int
    idle_jobs: int
    concurrency: int
    output: str
    profile: Path | None
    kafka: str | None = None


def main(options: PipelineOptions) -> int:
    console = Console(stderr=True)
    if options.output not in ("table", "json"):
        console.print("yard bench: --output is table or json")
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_measure(options, console))
    if options.output == "json":
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)
    return 0 if report["failed_jobs"] == 0 else 1


async def _measure(options: PipelineOptions, console: Console) -> dict[str, Any]:
    extra: list[tuple[str, str]] = []
    if options.profile is not None:
        options.profile.mkdir(parents=True, exist_ok=True)
        extra.append((PROFILE_VARIABLE, str(options.profile.resolve())))
    kafka = None
    if options.kafka is not None:
        kafka = KafkaOptions(options.kafka, prefix=f"bench-{secrets.token_hex(4)}.")
        extra.append(("YARD_KAFKA_PREFIX", kafka.prefix))
    up = UpOptions(
        http=free_address(),
        nodes=_NODES,
        devices=_DEVICES,
        executor="simulated",
        kafka=options.kafka,
        extra_env=tuple(extra),
    )
    async with running_installation(up) as running:
        try:
            at_rest = running.memory_mib()
            async with _connected(running, kafka) as (engine, endings):
                idle = await _idle_part(running, endings, options.idle_jobs)
                before = running.cpu_seconds()
                busy, peak = await _busy_part(running, endings, options, console)
                cpu = {name: used - before[name] for name, used in running.cpu_seconds().items()}
                await endings.until_started(busy)
                starts = dict(endings.started)
                events = await (_events_per_topic(engine) if kafka is None else _published_per_topic(engine, endings))
        finally:
            if running.died:
                print("\n".join(running.died), file=sys.stderr)
    report = _report(options, idle, busy, starts, events, len(running.died))
    report["cpu_ms_per_job"] = {name: round(used * 1000 / options.jobs, 3) for name, used in sorted(cpu.items())}
    report["memory_mib"] = {
        "at_rest": {name: round(mib, 1) for name, mib in sorted(at_rest.items())},
        "at_rest_total": round(sum(at_rest.values()), 1),
        "peak": {name: round(mib, 1) for name, mib in sorted(peak.items())},
        "peak_total": round(sum(peak.values()), 1),
    }
    return report


class Endings:
    """The starts of tasks and the ends of jobs as they appear on the bus."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.started: dict[str, float] = {}
        self.node_events = 0
        self._changed = asyncio.Condition()

    async def follow(self, session: Session) -> None:
        async for refs in session.assignments():
            async with asyncio.TaskGroup() as group:
                for ref in refs:
                    group.create_task(self._follow_partition(session, ref))

    async def _follow_partition(self, session: Session, ref: Any) -> None:
        offset: int | None = None
        while True:
            records = await session.read(ref, offset, 1000)
            offset = records[-1].following
            found = {record.key: record.type for record in records if record.type in _TERMINAL}
            started = dict(_start(record) for record in records if record.type == _STARTED)
            self.node_events += len(records) if ref.topic == NODES_EVENTS else 0
            if found or started:
                async with self._changed:
                    self.ended |= found
                    self.started |= started
                    self._changed.notify_all()

    async def wait_for(self, jobs: Iterable[str]) -> None:
        wanted = set(jobs)
        async with self._changed:
            await self._changed.wait_for(lambda: wanted <= self.ended.keys())

    async def until_started(self, jobs: Iterable[str]) -> None:
        wanted = set(jobs)
        async with self._changed:
            await self._changed.wait_for(lambda: wanted <= self.started.keys())


def _start(record: Record) -> tuple[str, float]:
    """(job id, when its task was seen running, by the agent's clock, which is this machine's)."""
    data = json.loads(record.value)
    return data["allocation_id"].partition("-a")[0], datetime.fromisoformat(data["observed_at"]).timestamp()


@asynccontextmanager
async def _connected(running: Running, kafka: KafkaOptions | None) -> AsyncIterator[tuple[AsyncEngine, Endings]]:
    engine = create_engine(running.dsn, application="yard bench", pool_size=4)
    clock = SystemClock()
    bus: Bus
    if kafka is None:
        bus = embedded = PostgresBus(engine, clock=clock, ids=SystemIds(clock))
        await embedded.load_topics()
    else:
        bus = KafkaBus(kafka, clock=clock)
    endings = Endings()
    async with bus.session(None, [JOBS_EVENTS, NODES_EVENTS]) as session, asyncio.TaskGroup() as group:
        following = group.create_task(endings.follow(session))
        try:
            yield engine, endings
        finally:
            following.cancel()
    await bus.close()
    await engine.dispose()


_BODY = json.dumps(
    {"name": "bench", "tasks": {"count": 1, "gpus": 1}, "run": {"command": ["true"]}, "labels": {"for": "bench"}}
).encode()


def _connection(running: Running) -> LoadConnection:
    return LoadConnection(running.url.removeprefix("http://"), "/v1/jobs", running.token, _BODY)


async def _submit(connection: LoadConnection) -> tuple[str, float]:
    """(job id, when the submission was sent)."""
    sent = time.time()
    return (await connection.post())["id"], sent


async def _idle_part(running: Running, endings: Endings, jobs: int) -> dict[str, float]:
    """When each was sent: one at a time, each after the end of the one before. The first few warm things up."""
    sent: dict[str, float] = {}
    with closing(_connection(running)) as connection:
        for number in range(jobs + 5):
            job_id, at = await _submit(connection)
            if number >= 5:
                sent[job_id] = at
            await endings.wait_for([job_id])
    return sent


async def _busy_part(
    running: Running, endings: Endings, options: PipelineOptions, console: Console
) -> tuple[dict[str, float], dict[str, float]]:
    """As many submissions under way as allowed. Returns when each was sent, and the peak memory per process."""
    sent: dict[str, float] = {}
    peak: dict[str, float] = {}
    left = iter(range(options.jobs))
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("jobs", total=options.jobs)

        async def submitter() -> None:
            with closing(_connection(running)) as connection:
                for _ in left:
                    job_id, at = await _submit(connection)
                    sent[job_id] = at
                    progress.advance(task)

        async def sampler() -> None:
            while True:
                for name, mib in running.memory_mib().items():
                    peak[name] = max(peak.get(name, 0.0), mib)
                await asyncio.sleep(_SAMPLE_SECONDS)

        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(sampler())
            async with asyncio.TaskGroup() as submitters:
                for _ in range(options.concurrency):
                    submitters.create_task(submitter())
            await endings.wait_for(sent)
            sampling.cancel()
    return sent, peak


async def _events_per_topic(engine: AsyncEngine) -> Counter[str]:
    async with engine.connect() as connection:
        return Counter({row.name: row.events for row in await connection.execute(_EVENTS)})


async def _published_per_topic(engine: AsyncEngine, endings: Endings) -> Counter[str]:
    """What the relays numbered, and what the agents published."""
    found: Counter[str] = Counter({NODES_EVENTS: endings.node_events})
    async with engine.connect() as connection:
        for service in CONSUMING_SERVICES:
            rows = await connection.execute(sa.text(f"SELECT topic, last_seq FROM {service}.published"))  # noqa: S608
            for row in rows:
                found[row.topic] += row.last_seq + 1
    return found


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _report(
    options: PipelineOptions,
    idle: dict[str, float],
    busy: dict[str, float],
    starts: dict[str, float],
    events: Counter[str],
    died: int,
) -> dict[str, Any]:
    first = min(busy.values())
    seconds = max(starts[job] for job in busy if job in starts) - first
    wait = [(starts[job] - at) * 1000 for job, at in busy.items() if job in starts]
    idle_wait = [(starts[job] - at) * 1000 for job, at in idle.items() if job in starts]
    per_service: Counter[str] = Counter()
    share = options.jobs / (options.jobs + len(idle) + 5)
    for topic, count in events.items():
        per_service[TOPICS[topic].writer] += count
    return {
        "jobs": options.jobs,
        "failed_jobs": len(busy) - len([job for job in busy if job in starts]) + died,
        "seconds": round(seconds, 3),
        "jobs_per_s": round(options.jobs / seconds, 1),
        "submit_to_start_ms": {
            "p50": round(_quantile(wait, 0.5), 1),
            "p99": round(_quantile(wait, 0.99), 1),
            "idle_p50": round(_quantile(idle_wait, 0.5), 1),
            "idle_p99": round(_quantile(idle_wait, 0.99), 1),
        },
        "events_per_s": {name: round(count * share / seconds, 1) for name, count in sorted(per_service.items())},
        "machine": {"cores": os.cpu_count()},
    }


def _print_table(report: dict[str, Any]) -> None:
    table = Table(title="yard bench pipeline", show_header=False)
    wait = report["submit_to_start_ms"]
    table.add_row("jobs per second", f"{report['jobs_per_s']}  ({report['jobs']} in {report['seconds']} s)")
    table.add_row("submit to start, busy", f"p50 {wait['p50']} ms, p99 {wait['p99']} ms")
    table.add_row("submit to start, idle", f"p50 {wait['idle_p50']} ms, p99 {wait['idle_p99']} ms")
    table.add_row("events per second", ", ".join(f"{name} {rate}" for name, rate in report["events_per_s"].items()))
    memory = report["memory_mib"]
    table.add_row(
        "memory without PostgreSQL", f"{memory['at_rest_total']} MiB at rest, {memory['peak_total']} MiB peak"
    )
    Console().print(table)
