"""The gateway's tables: callers, idempotency keys, the read model of jobs, and the events people follow."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlmodel import Field, SQLModel

from yard_store.tables import ServiceTables

SCHEMA = "gateway"
TABLES = ServiceTables(SCHEMA)

EVENT_COUNTER = "events"
JOB_COUNTER = "jobs"


class GatewayTable(SQLModel):
    metadata = TABLES.metadata


def _time(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(TIMESTAMP(timezone=True), nullable=nullable))


def _text(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Text, nullable=nullable))


class CounterRow(GatewayTable, table=True):
    """The last number given out. Its row lock is held until commit, so numbers become visible in order (law 5)."""

    __tablename__ = "counters"
    name: str = Field(primary_key=True)
    last_value: int = Field(sa_column=Column(BigInteger, nullable=False))


class TokenRow(GatewayTable, table=True):
    __tablename__ = "tokens"
    token_id: str = Field(primary_key=True)
    name: str
    role: str
    projects: list[str] = Field(sa_column=Column(JSONB, nullable=False))
    digest: str
    created_by: str
    created_at: datetime = _time(nullable=False)
    revoked_at: datetime | None = _time()


class IdempotencyRow(GatewayTable, table=True):
    """Which job a caller's key stands for. `digest`: SHA-256 of the canonical document."""

    __tablename__ = "idempotency"
    actor: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    digest: str
    job_id: str
    created_at: datetime = _time(nullable=False)


class JobRow(GatewayTable, table=True):
    """One job as people see it. `document`, `tasks`, `places`, `task_ends` and `agents` are JSON kept as text: they are
    passed through, never searched. `agents`: node → the address of its agent. `fact_offset`: the log offset of the last
    fact folded; what is not above it was folded before.
    """

    __tablename__ = "jobs"
    job_id: str = Field(primary_key=True)
    seq: int = Field(sa_column=Column(BigInteger, nullable=False))
    name: str
    project: str
    queue: str
    tier: str
    priority: int
    state: str
    reason: str | None
    detail: str | None
    attempt: int
    tasks: str = _text()
    document: str = _text()
    labels: dict[str, str] = Field(sa_column=Column(JSONB, nullable=False))
    submitted_by: str
    submitted_at: datetime = _time(nullable=False)
    started_at: datetime | None = _time()
    ended_at: datetime | None = _time()
    exit_code: int | None
    places: str = _text()
    agents: str = _text()
    task_ends: str = _text()
    fact_at: datetime | None = _time()
    fact_offset: int = Field(sa_column=Column(BigInteger, nullable=False))


class EventRow(GatewayTable, table=True):
    """What happened, as people follow it. `data` is the event's JSON without what concerns only services."""

    __tablename__ = "events"
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True))
    event_id: str
    type: str
    time: datetime = _time(nullable=False)
    recorded_at: datetime = _time(nullable=False)
    job_id: str | None
    project: str | None
    node: str | None
    data: str = _text()


class QueueRow(GatewayTable, table=True):
    """The queues that admission has told of, so that a submission need not ask."""

    __tablename__ = "queues"
    queue: str = Field(primary_key=True)
    gpu_quota: int = Field(sa_column=Column(BigInteger, nullable=False))


class ParkedJobRow(GatewayTable, table=True):
    """A record about a job that a service has parked. `error` is null when it only queues behind another."""

    __tablename__ = "parked_jobs"
    service: str = Field(primary_key=True)
    topic: str = Field(primary_key=True)
    partition: int = Field(primary_key=True)
    log_offset: int = Field(sa_column=Column(BigInteger, primary_key=True))
    job_id: str
    error: str | None
    parked_at: datetime = _time(nullable=False)


def table(row: type[GatewayTable]) -> Any:
    """The Core table of a row class."""
    return row.__table__  # type: ignore[attr-defined]


COUNTERS = table(CounterRow)
TOKENS = table(TokenRow)
IDEMPOTENCY = table(IdempotencyRow)
JOBS = table(JobRow)
EVENTS = table(EventRow)
QUEUES = table(QueueRow)
PARKED_JOBS = table(ParkedJobRow)
