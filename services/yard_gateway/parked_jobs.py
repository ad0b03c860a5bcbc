"""Which jobs are parked, as the dead-letter topics of all services tell it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import structlog
from pydantic import ValidationError
from pydantic_core import from_json

from yard_bus.consumer import Received
from yard_domain.names import JOB_ID
from yard_events.dead_letters import (
    PARKED_TYPE,
    RESOLVED_TYPE,
    SERVICE_OF_TOPIC,
    DeadLetterResolved,
    Origin,
    error_of,
    origin_of,
)
from yard_gateway.feed import JOB_NEWS
from yard_gateway.handlers import event_row, record_events, seen_events
from yard_gateway.tables import JOBS, PARKED_JOBS
from yard_store.bulk import any_of, bulk_delete, bulk_insert
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.gateway")

Place = tuple[str, Origin]
"""The service that parked a record, and the record."""


@dataclass(frozen=True, slots=True)
class _Told:
    """One word about a parked record. `job_id`: the job that it names itself, for one that was parked now."""

    received: Received
    place: Place
    job_id: str | None


async def dead_letters(batch: Sequence[Received], uow: UnitOfWork) -> None:
    """The handler of every dead-letter topic. Nothing in them makes it fail: what it parked would come back here."""
    told = [one for received in batch if (one := _understood(received)) is not None]
    if not told:
        return
    seen = await seen_events(uow, [one.received for one in told])
    holders = await _holders(uow, [one.place for one in told if one.job_id is None])
    projects = await _projects(uow, {one.job_id for one in told if one.job_id is not None} | set(holders.values()))
    parked: dict[Place, dict[str, Any]] = {}
    resolved: dict[Place, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    for one in told:
        job_id = one.job_id or holders.get(one.place)
        if job_id not in projects or one.received.envelope.id in seen:
            continue
        seen.add(one.received.envelope.id)
        row = _place_row(one.place)
        if one.job_id is not None:
            error = error_of(one.received.envelope.extra)
            row |= {"job_id": job_id, "error": error and _clean(error), "parked_at": one.received.envelope.time}
            parked[one.place] = row
            resolved.pop(one.place, None)
            holders[one.place] = job_id
        else:
            parked.pop(one.place, None)
            resolved[one.place] = row
        events.append(_event(one, job_id, projects[job_id], uow.now))
    await bulk_delete(uow.connection, PARKED_JOBS, list(resolved.values()))
    await bulk_insert(uow.connection, PARKED_JOBS, list(parked.values()), update=["error"])
    await record_events(uow, events)
    for event in events:
        uow.tell(JOB_NEWS, event["job_id"])


def _understood(received: Received) -> _Told | None:
    """None for what this version does not know, and for what names no job."""
    envelope = received.envelope
    service = SERVICE_OF_TOPIC.get(envelope.topic)
    if service is None or envelope.type not in (PARKED_TYPE, RESOLVED_TYPE):
        return None
    origin = origin_of(envelope.extra)
    if origin is None or (envelope.type == RESOLVED_TYPE and _outcome(envelope.value) is None):
        _log.warning("not a dead letter", topic=envelope.topic, id=envelope.id)
        return None
    if envelope.type == RESOLVED_TYPE:
        return _Told(received, (service, origin), None)
    job_id = _job_of(envelope.key, envelope.value)
    return None if job_id is None else _Told(received, (service, origin), job_id)


def _job_of(key: str, value: bytes) -> str | None:
    """The job that a record is about: its key, or where pools and nodes are keys, what its value says."""
    if JOB_ID.fullmatch(key):
        return key
    try:
        found = from_json(value)
    except ValueError:
        return None
    job_id = found.get("job_id") if isinstance(found, dict) else None
    return job_id if isinstance(job_id, str) and JOB_ID.fullmatch(job_id) else None


def _outcome(value: bytes) -> DeadLetterResolved | None:
    try:
        return DeadLetterResolved.model_validate_json(value)
    except ValidationError:
        return None


async def _holders(uow: UnitOfWork, places: Sequence[Place]) -> dict[Place, str]:
    """Whose the records are that stand in the table."""
    if not places:
        return {}
    t = PARKED_JOBS.c
    wanted = [(service, at.topic, at.partition, at.offset) for service, at in set(places)]
    found = await uow.connection.execute(
        sa.select(t.service, t.topic, t.partition, t.log_offset, t.job_id).where(
            sa.tuple_(t.service, t.topic, t.partition, t.log_offset).in_(wanted)
        )
    )
    return {(row.service, Origin(row.topic, row.partition, row.log_offset)): row.job_id for row in found}


async def _projects(uow: UnitOfWork, job_ids: set[str]) -> Mapping[str | None, str]:
    """The projects of those jobs that the gateway knows."""
    if not job_ids:
        return {}
    statement = sa.select(JOBS.c.job_id, JOBS.c.project).where(any_of(JOBS.c.job_id, sorted(job_ids)))
    return {row.job_id: row.project for row in await uow.connection.execute(statement)}


def _place_row(place: Place) -> dict[str, Any]:
    service, origin = place
    return {
        "service": service,
        "topic": origin.topic,
        "partition": origin.partition,
        "log_offset": origin.offset,
    }


def _event(one: _Told, job_id: str, project: str, now: datetime) -> dict[str, Any]:
    service, origin = one.place
    envelope = one.received.envelope
    data = {"job_id": job_id, "service": service, "record": f"{origin.topic}/{origin.partition}@{origin.offset}"}
    if envelope.type == PARKED_TYPE:
        error = error_of(envelope.extra)
        data |= {"error": _clean(error)} if error is not None else {}
    elif (end := _outcome(envelope.value)) is not None:
        data |= end.model_dump(mode="json", exclude_none=True)
    return event_row(one.received, json.dumps(data), now, job_id=job_id, project=project)


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd")
