"""Folding what others say into the read model: jobs from admission, nodes from inventory, queues from admission."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import ARRAY

from yard_bus.consumer import Received
from yard_domain.states import TERMINAL_JOB_STATES, JobState
from yard_events.types import InventoryNode, JobEnded, JobFact, JobRunning, JobStarting, QueueState
from yard_gateway.database import take_numbers
from yard_gateway.directory import Directory
from yard_gateway.feed import JOB_NEWS, NO_JOB
from yard_gateway.tables import EVENT_COUNTER, EVENTS, JOBS, QUEUES
from yard_store.bulk import any_of, bulk_insert, bulk_update
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.gateway")

_JOBS = sa.text(
    "SELECT job_id, state, reason, detail, attempt, started_at, fact_at, fact_offset, agents, "
    "  CASE WHEN job_id = ANY(:starting) THEN places END AS places "
    "FROM gateway.jobs WHERE job_id = ANY(:jobs)"
).bindparams(sa.bindparam("starting", type_=ARRAY(sa.Text)), sa.bindparam("jobs", type_=ARRAY(sa.Text)))


@dataclass(slots=True)
class _Job:
    """A job of the batch. `written`: the columns that its facts changed."""

    job_id: str
    state: str
    reason: str | None
    detail: str | None
    attempt: int
    started_at: datetime | None
    fact_at: datetime | None
    fact_offset: int
    agents: str
    places: str | None
    exit_code: int | None = None
    ended_at: datetime | None = None
    task_ends: str = "[]"
    written: set[str] = field(default_factory=set[str])


_ALWAYS = ("job_id", "state", "reason", "detail", "attempt", "started_at", "fact_at", "fact_offset")


class ReadModelHandlers:
    """The gateway's handlers. `directory` changes only after the commit, which all instances hear of as JOB_NEWS."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def job_events(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        facts = [(received, received.data) for received in batch if isinstance(received.data, JobFact)]
        if not facts:
            return
        jobs = await _load_jobs(uow, [fact for _, fact in facts])
        seen = await seen_events(uow, [received for received, _ in facts])
        fresh: list[tuple[Received, JobFact]] = []
        for received, fact in facts:
            job = jobs.get(fact.job_id)
            if job is None:
                _log.warning("fact of an unknown job", job_id=fact.job_id, type=received.envelope.type)
            elif received.envelope.id not in seen and fold(job, fact, received.record.offset):
                seen.add(received.envelope.id)
                fresh.append((received, fact))
        await _save_jobs(uow, jobs.values())
        await record_events(uow, [_job_event(received, fact, uow.now) for received, fact in fresh])
        changed = sorted({fact.job_id for _, fact in fresh})
        if changed:
            for job_id in changed:
                uow.tell(JOB_NEWS, job_id)

    async def inventory_state(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        facts = [(received, received.data) for received in batch if isinstance(received.data, InventoryNode)]
        seen = await seen_events(uow, [received for received, _ in facts])
        rows: list[dict[str, Any]] = []
        for received, fact in facts:
            if received.envelope.id not in seen:
                seen.add(received.envelope.id)
                data = fact.model_dump_json(exclude_none=True, exclude={"agent_url"})
                rows.append(event_row(received, data, uow.now, node=fact.node))
        await record_events(uow, rows)
        if rows:
            uow.tell(JOB_NEWS, NO_JOB)

    async def queue_state(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        queues = {fact.queue: fact for fact in (received.data for received in batch) if isinstance(fact, QueueState)}
        rows = [{"queue": name, "gpu_quota": queues[name].gpu_quota} for name in sorted(queues)]
        await bulk_insert(uow.connection, QUEUES, rows, update=["gpu_quota"])
        uow.after_commit(lambda: self._directory.learn_queues(queues))


def fold(job: _Job, fact: JobFact, log_offset: int) -> bool:
    """Apply one fact; False when it is not news.

    The log keeps a job's facts in order, so its offset says which is newer; `at` does not, because it comes from the
    clocks of several services. An ended job and an earlier attempt are never touched again.
    """
    if log_offset <= job.fact_offset or fact.attempt < job.attempt or job.state in TERMINAL_JOB_STATES:
        return False
    if isinstance(fact, JobStarting):
        _place(job, fact)
    if isinstance(fact, JobRunning) and (job.started_at is None or fact.attempt > job.attempt):
        job.started_at = fact.at
    if fact.state == JobState.QUEUED:
        job.started_at = None
    if isinstance(fact, JobEnded):
        _end(job, fact)
    job.state = fact.state
    job.reason = fact.reason
    job.detail = fact.detail.replace("\0", "\ufffd") if fact.detail is not None else None
    job.attempt = fact.attempt
    job.fact_at = fact.at
    job.fact_offset = log_offset
    job.written.update(_ALWAYS)
    return True


def _place(job: _Job, fact: JobStarting) -> None:
    """Places of all attempts stay, so that the output of an earlier attempt can be read."""
    places = [place for place in json.loads(job.places or "[]") if place["attempt"] != fact.attempt]
    places += [task.model_dump(exclude={"agent_url"}) | {"attempt": fact.attempt} for task in fact.tasks]
    job.places = json.dumps(places, separators=(",", ":"))
    agents = json.loads(job.agents) | {task.node: task.agent_url for task in fact.tasks if task.agent_url}
    job.agents = json.dumps(agents, separators=(",", ":"))
    job.started_at = None
    job.written.update(("places", "agents"))


def _end(job: _Job, fact: JobEnded) -> None:
    if job.started_at is None and job.state == JobState.STARTING and any(e.exit_code is not None for e in fact.tasks):
        # Start and end of a short run may reach admission together, and then no "running" is told.
        job.started_at = job.fact_at
    job.ended_at = fact.at
    job.exit_code = fact.exit_code
    job.task_ends = "[" + ",".join(end.model_dump_json() for end in fact.tasks) + "]"
    job.written.update(("ended_at", "exit_code", "task_ends"))


async def _load_jobs(uow: UnitOfWork, facts: Sequence[JobFact]) -> dict[str, _Job]:
    jobs = sorted({fact.job_id for fact in facts})
    starting = sorted({fact.job_id for fact in facts if isinstance(fact, JobStarting)})
    found = await uow.connection.execute(_JOBS, {"jobs": jobs, "starting": starting})
    return {row["job_id"]: _Job(**row) for row in found.mappings()}


async def _save_jobs(uow: UnitOfWork, jobs: Iterable[_Job]) -> None:
    """One statement per set of changed columns, of which there are four at most."""
    by_columns: dict[tuple[str, ...], list[_Job]] = {}
    for job in jobs:
        if job.written:
            by_columns.setdefault(tuple(sorted(job.written)), []).append(job)
    for columns, changed in sorted(by_columns.items()):
        await bulk_update(uow.connection, JOBS, [{name: getattr(job, name) for name in columns} for job in changed])


async def seen_events(uow: UnitOfWork, batch: Sequence[Received]) -> set[str]:
    """The ids that were recorded before: an event told twice changes nothing, at whatever offset."""
    if not batch:
        return set()
    ids = [received.envelope.id for received in batch]
    found = await uow.connection.execute(sa.select(EVENTS.c.event_id).where(any_of(EVENTS.c.event_id, ids)))
    return {row.event_id for row in found}


def _job_event(received: Received, fact: JobFact, now: datetime) -> dict[str, Any]:
    if isinstance(fact, JobStarting):
        data = fact.model_dump_json(exclude_none=True, exclude={"tasks": {"__all__": {"agent_url"}}})
    else:
        data = fact.model_dump_json(exclude_none=True)
    return event_row(received, data, now, job_id=fact.job_id, project=fact.project_id)


def event_row(
    received: Received,
    data: str,
    now: datetime,
    *,
    job_id: str | None = None,
    project: str | None = None,
    node: str | None = None,
) -> dict[str, Any]:
    return {
        "event_id": received.envelope.id,
        "type": received.envelope.type,
        "time": received.envelope.time,
        "recorded_at": now,
        "job_id": job_id,
        "project": project,
        "node": node,
        "data": data,
    }


async def record_events(uow: UnitOfWork, rows: Sequence[dict[str, Any]]) -> None:
    """Give the events their numbers, in this order."""
    if not rows:
        return
    first = await take_numbers(uow.connection, EVENT_COUNTER, len(rows))
    numbered = [{"seq": first + index} | row for index, row in enumerate(rows)]
    await bulk_insert(uow.connection, EVENTS, numbered)
