"""Admission's tables: queues with their quota and usage, projects, jobs, and what the fleet consists of."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlmodel import Field, SQLModel

from yard_store.tables import ServiceTables

SCHEMA = "admission"
TABLES = ServiceTables(SCHEMA)


class AdmissionTable(SQLModel):
    metadata = TABLES.metadata


def _time(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(TIMESTAMP(timezone=True), nullable=nullable))


def _json(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=nullable))


class QueueRow(AdmissionTable, table=True):
    """`used_gpus` is the sum of the live claims of the queue's jobs, written in the same statement batch as they are
    (INV-4). `attention`: something happened since the cycle last looked at it.
    """

    __tablename__ = "queues"
    name: str = Field(primary_key=True)
    gpu_quota: int
    used_gpus: int = 0
    attention: bool = True
    looked_at: datetime | None = _time()


class ProjectRow(AdmissionTable, table=True):
    __tablename__ = "projects"
    name: str = Field(primary_key=True)


class JobRow(AdmissionTable, table=True):
    """See `job.Job`. `waiting` and `untold` restate what the other columns say, for the indexes: `state` and `reason`
    are in none, so that most changes of a job rewrite its row and no index.
    """

    __tablename__ = "jobs"
    job_id: str = Field(primary_key=True)
    project_id: str
    queue: str
    name: str
    priority: int
    submitted_at: datetime = _time(nullable=False)
    total_gpus: int
    max_attempts: int
    max_run_seconds: float | None
    work: dict[str, Any] = _json()
    state: str
    reason: str | None
    held: str | None
    attempt: int
    place_no: int
    attempt_id: str | None
    placed: bool
    claimed_gpus: int
    stop_cause: str | None
    decided_at: datetime | None = _time()
    queued_at: datetime = _time(nullable=False)
    started: bool
    run_since: datetime | None = _time()
    run_used_seconds: float
    places: list[dict[str, Any]] | None = _json(nullable=True)
    lost_allocations: list[str] | None = _json(nullable=True)
    waiting: bool
    untold: bool
    ended_at: datetime | None = _time()
    trace: dict[str, str] | None = _json(nullable=True)
    correlation_id: str | None
    attempt_trace: dict[str, str] | None = _json(nullable=True)


class NodeRow(AdmissionTable, table=True):
    """`hardware`: a digest of what decides whether a job could ever fit; `log_offset`: of the last state folded."""

    __tablename__ = "nodes"
    name: str = Field(primary_key=True)
    hardware: str
    schedulable: bool
    log_offset: int = Field(sa_column=Column(BigInteger, nullable=False))
