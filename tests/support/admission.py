"""A desk at which tests play everybody around admission: people, placement, inventory; and look at what it says.

Events go through the real log; handlers and the cycle run in real units of work, and after each of them the invariants
are checked.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from support.log import events_of
from yard_admission import app, repository
from yard_admission.outbox import SCOPE
from yard_admission.settings import AdmissionSettings
from yard_bus.consumer import Received, receive
from yard_bus.protocol import PartitionRef, Record
from yard_domain.states import Outcome
from yard_events import registry, types
from yard_events.base import EventModel, wrap
from yard_events.job_document import JobDocument
from yard_runtime.service import EventService, Runtime
from yard_store.unit_of_work import Store

START = datetime(2025, 1, 1, 12, tzinfo=UTC)
TOPICS_IN = (registry.JOBS_REQUESTS, registry.PLACEMENT_DECISIONS, registry.INVENTORY_STATE)

_LOG = sa.text(
    "SELECT l.partition, l.log_offset, l.key, l.type, l.headers::json AS headers, l.value, t.incarnation "
    "FROM yard_bus.log l JOIN yard_bus.topic t USING (topic_id) WHERE t.name = :topic AND l.log_offset >= :first "
    "ORDER BY l.partition, l.log_offset LIMIT :limit"
)


@dataclass(slots=True)
class HandClock:
    """Time that moves when the test says so."""

    time: datetime = START

    def now(self) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def document(name: str, **spec: Any) -> JobDocument:
    tasks = {key: spec.pop(key) for key in ("count", "gpus", "gpu_models") if key in spec}
    attempts, run_time = spec.pop("attempts", 1), spec.pop("max_run", None)
    return JobDocument.model_validate(
        {
            "name": name,
            "tasks": tasks,
            "run": {"command": ["true"]},
            "retry": {"max_attempts": attempts},
            "limits": {"max_run_time": run_time} if run_time else {},
            **spec,
        }
    )


def node_state(name: str = "n1", **facts: Any) -> types.InventoryNode:
    base: dict[str, Any] = {
        "node": name,
        "cluster": "local",
        "pool": "default",
        "state": "ready",
        "cordoned": False,
        "generation": 1,
        "boot_id": "b1",
        "agent_url": "",
        "cpus": 8.0,
        "memory_bytes": 2**34,
        "devices": [{"uuid": f"GPU-{name}", "index": 0, "model": "H100", "memory_bytes": 2**33}],
        "last_contact": START,
        "at": START,
    }
    return types.InventoryNode.model_validate(base | facts)


async def log_of(runtime: Runtime, topic: str, first: int = 0, limit: int = 1_000_000) -> list[Received]:
    """The records of a one-partition topic from offset `first` on, as the consumer would hand them over."""
    async with runtime.engine.connect() as connection:
        rows = (await connection.execute(_LOG, {"topic": topic, "first": first, "limit": limit})).all()
    return [
        receive(
            Record(
                PartitionRef(topic, row.partition, row.incarnation),
                row.log_offset,
                row.key,
                row.type,
                row.headers if isinstance(row.headers, dict) else json.loads(row.headers),
                row.value,
            )
        )
        for row in rows
    ]


async def publish(
    runtime: Runtime, events: Sequence[EventModel], time: datetime, trace: Mapping[str, str] | None = None
) -> None:
    ids = runtime.ids
    await runtime.bus.publish(
        [wrap(event, event_id=ids.new("evt"), source="tests", time=time, trace=trace) for event in events]
    )


def decided(kind: type[EventModel], place: types.PlaceAttempt, ledger_time: datetime, **data: Any) -> EventModel:
    """Placement's decision about what it was asked to place."""
    if kind is types.AttemptGranted:
        data = {
            "queue": place.queue,
            "allocations": [
                {
                    "allocation_id": f"{place.attempt_id}.t{rank}",
                    "task_rank": rank,
                    "node": "n1",
                    "agent_url": "http://n1",
                    "devices": [{"uuid": f"GPU-{rank}", "model": "H100"}],
                }
                for rank in range(place.tasks.count)
            ],
            "decision": {"now": ledger_time, "seed": 0, "config_hash": "c", "engine_version": "1"},
        }
    return kind.model_validate(
        {
            "cluster": place.cluster,
            "pool": place.pool,
            "attempt_id": place.attempt_id,
            "job_id": place.job_id,
            "project_id": place.project_id,
            "attempt": place.attempt,
            "ledger_time": ledger_time,
            **data,
        }
    )


@dataclass
class Desk:
    runtime: Runtime
    clock: HandClock
    service: EventService
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS_IN, 0))
    dirty: bool = True
    ticks: int = 0
    ages: int = 0

    @classmethod
    async def open(cls, runtime: Runtime, clock: HandClock | None = None, **settings: Any) -> "Desk":
        clock = clock or HandClock()
        runtime = replace(runtime, clock=clock)
        settings = {"notice_seconds": 0.0, "default_gpu_quota": 4} | settings
        desk = cls(runtime, clock, await app.build(AdmissionSettings(**settings), runtime))
        await desk.store.take(SCOPE, runtime.instance)
        desk.store.on_dirty(desk._mark)
        await desk.settle()
        return desk

    @property
    def store(self) -> Store:
        return self.service.store

    def _mark(self, scope: str) -> None:
        self.dirty = self.dirty or scope == SCOPE

    # --- what others do

    async def submit(
        self,
        name: str,
        *,
        settle: bool = True,
        project: str = "default",
        trace: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Each submission is a second younger than the one before; `age` says otherwise, in seconds since the start."""
        self.ages += 1
        age = spec.pop("age", self.ages)
        event = types.SubmitJob(
            job_id=f"job-{name}",
            project_id=project,
            spec=document(name, project=project, **spec),
            submitted_by="ann",
            submitted_at=START + timedelta(seconds=age),
        )
        await self.send(event, settle=settle, trace=trace)

    async def cancel(self, name: str, *, settle: bool = True, trace: Mapping[str, str] | None = None) -> None:
        event = types.CancelJob(job_id=f"job-{name}", project_id="default", requested_by="ann")
        await self.send(event, settle=settle, trace=trace)

    async def decide(
        self,
        kind: type[EventModel],
        name: str,
        *,
        attempt_id: str | None = None,
        settle: bool = True,
        trace: Mapping[str, str] | None = None,
        **data: Any,
    ) -> None:
        """Placement's decision about the last attempt of the job that it was asked to place, or about `attempt_id`."""
        places = [place for place in await self.asked(types.PlaceAttempt) if place.job_id == f"job-{name}"]
        place = next(p for p in reversed(places) if attempt_id in (None, p.attempt_id))
        await self.send(decided(kind, place, self.tick(), **data), settle=settle, trace=trace)

    async def grant(self, *names: str) -> None:
        for name in names:
            await self.decide(types.AttemptGranted, name)

    async def start(self, *names: str) -> None:
        for name in names:
            await self.decide(types.AttemptGranted, name)
            await self.decide(types.AttemptStarted, name)

    async def block(self, name: str, reason: str = "insufficient_gpu", *, hopeless: bool = False, **data: Any) -> None:
        await self.decide(types.AttemptBlocked, name, reason=reason, hopeless=hopeless, **data)

    async def exit(
        self, name: str, outcome: str = "succeeded", reason: str = "exit_code", code: int | None = 0, **data: Any
    ) -> None:
        end = {"task_rank": 0, "outcome": outcome, "reason": reason, "exit_code": code}
        data = {"outcome": Outcome(outcome), "reason": reason, "exit_code": code, "tasks": [end]} | data
        await self.decide(types.AttemptExited, name, **data)

    async def exit_after_start(self, name: str) -> None:
        await self.start(name)
        await self.exit(name)

    async def lose(self, name: str, *, contact: datetime | None = None, ranks: Sequence[int] = (0,)) -> None:
        await self.decide(
            types.AttemptLost,
            name,
            last_contact=contact or self.clock.now(),
            allocation_ids=await self._ids(name, ranks),
        )

    async def recover(self, name: str, *, ranks: Sequence[int] = (0,)) -> None:
        await self.decide(types.AttemptRecovered, name, allocation_ids=await self._ids(name, ranks))

    async def _ids(self, name: str, ranks: Sequence[int]) -> list[str]:
        attempt_id = (await self.job(name))["attempt_id"]
        return [f"{attempt_id}.t{rank}" for rank in ranks]

    async def node(self, name: str = "n1", **facts: Any) -> None:
        await self.send(node_state(name, **facts))

    def tick(self) -> datetime:
        """Ledger time: the clock's, and always later than before."""
        self.ticks += 1
        return self.clock.now() + timedelta(microseconds=self.ticks)

    async def send(self, *events: EventModel, settle: bool = True, trace: Mapping[str, str] | None = None) -> None:
        await publish(self.runtime, events, self.clock.now(), trace)
        if settle:
            await self.settle()

    async def wait(self, seconds: float) -> None:
        self.clock.time += timedelta(seconds=seconds)
        await self.settle()

    # --- what admission does

    async def settle(self) -> None:
        """Handlers and the cycle, until nothing is left to read and nothing to decide."""
        for _ in range(100):
            found = [(topic, await log_of(self.runtime, topic, self.read[topic])) for topic in TOPICS_IN]
            for topic, records in found:
                if records:
                    await self.handle(topic, records)
                    self.read[topic] = records[-1].record.offset + 1
            if not any(records for _, records in found) and not await self.cycle_if_due():
                return
        raise AssertionError("admission does not come to rest")

    async def handle(self, topic: str, records: Sequence[Received]) -> None:
        async with self.store.unit_of_work() as uow:
            await self.service.handlers[topic](records, uow)
        await self.check()

    async def cycle_if_due(self) -> bool:
        """What the scope's runner would do next; False when it would wait."""
        async with self.store.unit_of_work() as uow:
            due = await uow.next_due(SCOPE)
        if not self.dirty and (due is None or due > self.clock.now()):
            return False
        self.dirty = False
        async with self.store.unit_of_work() as uow:
            more = await self.service.scopes[SCOPE](uow, SCOPE)
        self.dirty = self.dirty or more
        await self.check()
        return True

    # --- what there is to see

    async def check(self) -> None:
        async with self.store.reading() as connection:
            found = await repository.check(connection)
        assert not any(found.values()), found

    async def job(self, name: str) -> dict[str, Any]:
        found = await self.rows(f"SELECT * FROM admission.jobs WHERE job_id = 'job-{name}'")
        return found[0]

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        async with self.runtime.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(sa.text(sql))).mappings()]

    async def states(self, *names: str) -> list[str]:
        return [(await self.job(name))["state"] for name in names]

    async def used(self, queue: str = "default") -> int:
        return (await self.rows(f"SELECT used_gpus FROM admission.queues WHERE name = '{queue}'"))[0]["used_gpus"]

    async def told(self, name: str) -> list[str]:
        """What the world was told of the job: state, and the reason where there is one."""
        facts = [e for e in await events_of(self.runtime, registry.JOBS_EVENTS) if isinstance(e, types.JobFact)]
        return [f"{f.state} {f.reason}" if f.reason else f.state for f in facts if f.job_id == f"job-{name}"]

    async def facts(self, kind: type[Any]) -> list[Any]:
        return [e for e in await events_of(self.runtime, registry.JOBS_EVENTS) if isinstance(e, kind)]

    async def asked(self, kind: type[Any] = EventModel) -> list[Any]:
        """What placement was asked, in order."""
        return [e for e in await events_of(self.runtime, registry.PLACEMENT_REQUESTS) if isinstance(e, kind)]

    async def commands(self, name: str) -> list[str]:
        """What placement was asked about the job: the command, the attempt, a stop's reason."""
        short = {types.PlaceAttempt: "place", types.StopAttempt: "stop", types.WithdrawAttempt: "withdraw"}
        found = [c for c in await self.asked() if c.job_id == f"job-{name}"]
        return [
            " ".join(
                [
                    short[type(c)],
                    c.attempt_id.removeprefix(f"job-{name}-"),
                    *([c.reason] if hasattr(c, "reason") else []),
                ]
            )
            for c in found
        ]

    async def everything(self) -> tuple[Any, ...]:
        """All of admission's tables and how much it has said: equal before and after what must change nothing."""
        queues = "SELECT name, gpu_quota, used_gpus, attention FROM admission.queues ORDER BY name"
        tables = {
            "queues": await self.rows(queues),
            "jobs": await self.rows("SELECT * FROM admission.jobs ORDER BY job_id"),
            "timers": await self.rows("SELECT kind, key, due_at FROM admission.timers ORDER BY kind, key"),
            "nodes": await self.rows("SELECT * FROM admission.nodes ORDER BY name"),
            "projects": await self.rows("SELECT * FROM admission.projects ORDER BY name"),
        }
        said = await self.rows(
            "SELECT t.name, count(*) FROM yard_bus.log JOIN yard_bus.topic t USING (topic_id) "
            f"WHERE t.name NOT IN {TOPICS_IN} GROUP BY t.name ORDER BY t.name"
        )
        return tables, said
