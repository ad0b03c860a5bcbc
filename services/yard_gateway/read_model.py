"""Jobs and events as people see them: queries, and their JSON."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from yard_domain.reasons import SENTENCES
from yard_domain.states import JobState
from yard_gateway.database import Reads
from yard_gateway.principals import Principal
from yard_gateway.tables import COUNTERS, EVENT_COUNTER, EVENTS, JOBS, PARKED_JOBS
from yard_store.bulk import any_of

_PARKED = (
    # The one that failed stands for those that queue behind it.
    sa.select(
        sa.func.json_build_object(
            "service", PARKED_JOBS.c.service, "topic", PARKED_JOBS.c.topic, "partition", PARKED_JOBS.c.partition,
            "offset", PARKED_JOBS.c.log_offset, "error", PARKED_JOBS.c.error, "since", PARKED_JOBS.c.parked_at,
            "records", sa.func.count().over(),
        ).cast(sa.Text)
    )
    .where(PARKED_JOBS.c.job_id == JOBS.c.job_id)
    .order_by(PARKED_JOBS.c.error.is_(None), PARKED_JOBS.c.parked_at, PARKED_JOBS.c.log_offset)
    .limit(1)
    .scalar_subquery()
    .label("parked")
)  # fmt: skip
_LISTED = (
    *(column for column in JOBS.c if column.name not in ("document", "agents", "fact_offset", "fact_at")),
    _PARKED,
)
_FULL = (*_LISTED, JOBS.c.document, JOBS.c.agents)
_SENTENCES: dict[str, str] = {reason.value: text for reason, text in SENTENCES.items()}


@dataclass(frozen=True, slots=True)
class JobFilter:
    project: str | None = None
    queue: str | None = None
    states: Sequence[str] = ()
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    active: bool | None = None


async def load_job(reads: Reads, job_id: str) -> Any | None:
    """The job's row with its document and agents, or None."""
    found = await reads.rows(sa.select(*_FULL).where(JOBS.c.job_id == job_id))
    return found[0] if found else None


async def list_jobs(
    reads: Reads, principal: Principal, wanted: JobFilter, *, before: int | None, limit: int
) -> tuple[list[Any], int | None]:
    """Up to `limit` rows, newest first, and the `before` of the next page. Jobs of projects that the caller does not
    see do not exist for it."""
    statement = sa.select(*_LISTED).order_by(JOBS.c.seq.desc()).limit(limit + 1)
    for condition in _conditions(principal, wanted, before):
        statement = statement.where(condition)
    found = await reads.rows(statement)
    more = len(found) > limit
    page = found[:limit]
    return page, page[-1].seq if more else None


def _conditions(principal: Principal, wanted: JobFilter, before: int | None) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if before is not None:
        conditions.append(JOBS.c.seq < before)
    if principal.projects is not None:
        conditions.append(any_of(JOBS.c.project, sorted(principal.projects)))
    for column, value in ((JOBS.c.project, wanted.project), (JOBS.c.queue, wanted.queue), (JOBS.c.name, wanted.name)):
        if value is not None:
            conditions.append(column == value)
    if wanted.states:
        conditions.append(any_of(JOBS.c.state, list(wanted.states)))
    if wanted.labels:
        conditions.append(JOBS.c.labels.contains(sa.literal(wanted.labels, JSONB)))
    if wanted.active is not None:
        conditions.append(JOBS.c.ended_at.is_(None) if wanted.active else JOBS.c.ended_at.is_not(None))
    return conditions


def job_json(row: Any, *, full: bool) -> bytes:
    """A job's JSON; `full` with the document it was submitted as. Stored JSON is passed through."""
    head = to_json(
        {
            "id": row.job_id,
            "name": row.name,
            "project": row.project,
            "queue": row.queue,
            "tier": row.tier,
            "priority": row.priority,
            "state": row.state,
            "reason": row.reason,
            "reason_text": _SENTENCES.get(row.reason) if row.reason is not None else None,
            "detail": row.detail,
            "attempt": row.attempt,
            "submitted_by": row.submitted_by,
            "submitted_at": row.submitted_at,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "exit_code": row.exit_code,
            "labels": row.labels,
            "parked": _parked(row.parked) if row.parked is not None else None,
        }
    )
    parts = {"tasks": row.tasks, "places": row.places, "task_ends": row.task_ends}
    if full:
        parts["spec"] = row.document
    tail = "".join(f',"{name}":{text}' for name, text in parts.items())
    return head[:-1] + tail.encode() + b"}"


def _parked(text: str) -> dict[str, Any]:
    """PostgreSQL writes times in the zone of the session."""
    found = json.loads(text)
    return found | {"since": datetime.fromisoformat(found["since"]).astimezone(UTC)}


def jobs_page_json(rows: Sequence[Any], next_before: int | None) -> bytes:
    cursor = to_json(encode_cursor(next_before) if next_before is not None else None)
    return b'{"items":[' + b",".join(job_json(row, full=False) for row in rows) + b'],"next_cursor":' + cursor + b"}"


def new_job_json(job_id: str, document: Any, canonical: bytes, actor: str, now: datetime) -> bytes:
    """The JSON of a job that was stored this moment: what reading it back would give, without reading it back."""
    row = _NewJob(
        job_id=job_id,
        name=document.name,
        project=document.project,
        queue=document.queue,
        tier=document.tier.value,
        priority=document.priority,
        labels=document.labels,
        submitted_by=actor,
        submitted_at=now,
        tasks=document.tasks.model_dump_json(),
        document=canonical.decode(),
    )
    return job_json(row, full=True)


@dataclass(frozen=True, slots=True)
class _NewJob:
    job_id: str
    name: str
    project: str
    queue: str
    tier: str
    priority: int
    labels: dict[str, str]
    submitted_by: str
    submitted_at: datetime
    tasks: str
    document: str
    state: str = JobState.SUBMITTED.value
    reason: str | None = None
    detail: str | None = None
    attempt: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    places: str = "[]"
    task_ends: str = "[]"
    parked: str | None = None


def encode_cursor(before: int) -> str:
    """Opaque to clients: what it is made of may change."""
    return base64.urlsafe_b64encode(f"j1:{before}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> int:
    """Raises ValueError for what `encode_cursor` never made."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        raise ValueError("expected a next_cursor of an earlier page") from None
    kind, _, number = text.partition(":")
    if kind != "j1" or not number.isdecimal() or len(number) > 18:
        raise ValueError("expected a next_cursor of an earlier page")
    return int(number)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """`projects`: what the caller sees; None sees all. Events of nodes have no project and are seen by everybody."""

    projects: frozenset[str] | None = None
    project: str | None = None
    job_id: str | None = None
    types: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EventPage:
    """`position`: all that matched up to and including this number was returned: go on from there."""

    events: list[Any]
    position: int


async def event_bounds(reads: Reads) -> tuple[int, int]:
    """(first number that can still be read, last number given out); the first is last + 1 when nothing is left."""
    text = (
        "SELECT c.last_value AS last, (SELECT min(seq) FROM gateway.events) AS first "
        "FROM gateway.counters c WHERE c.name = :name"
    )
    row = (await reads.rows(sa.text(text), {"name": EVENT_COUNTER}))[0]
    return (row.first if row.first is not None else row.last + 1), row.last


async def read_events(reads: Reads, wanted: EventFilter, *, after: int, limit: int) -> EventPage:
    """The next events above `after`, in order.

    The last number given out and the events come from one statement, so from one snapshot: when the page is not full,
    nothing that matches lies at or below that number, and the reader need not look at the others again.
    """
    matching = sa.select(EVENTS).where(EVENTS.c.seq > after).order_by(EVENTS.c.seq).limit(limit)
    if wanted.projects is not None:
        matching = matching.where(sa.or_(EVENTS.c.project.is_(None), any_of(EVENTS.c.project, sorted(wanted.projects))))
    if wanted.project is not None:
        matching = matching.where(EVENTS.c.project == wanted.project)
    if wanted.job_id is not None:
        matching = matching.where(EVENTS.c.job_id == wanted.job_id)
    if wanted.types:
        matching = matching.where(any_of(EVENTS.c.type, list(wanted.types)))
    page = matching.lateral("page")
    last = sa.select(COUNTERS.c.last_value).where(COUNTERS.c.name == EVENT_COUNTER)
    head = last.subquery("head")
    statement = sa.select(head.c.last_value, *page.c).select_from(head.outerjoin(page, sa.true())).order_by(page.c.seq)
    found = await reads.rows(statement)
    events = [row for row in found if row.seq is not None]
    full = len(events) == limit
    return EventPage(events, events[-1].seq if full else max(after, found[0].last_value))


def event_json(row: Any) -> bytes:
    head = to_json(
        {
            "seq": row.seq,
            "type": row.type,
            "time": row.time,
            "job_id": row.job_id,
            "project": row.project,
            "node": row.node,
        }
    )
    return head[:-1] + b',"data":' + row.data.encode() + b"}"


def task_count(row: Any) -> int:
    return int(json.loads(row.tasks)["count"])


def places_of(row: Any) -> list[dict[str, Any]]:
    """Where the job's tasks run or ran, all attempts."""
    return list(json.loads(row.places))


def agents_of(row: Any) -> dict[str, str]:
    return dict(json.loads(row.agents))
