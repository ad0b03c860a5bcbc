"""Placement's tables: the allocation ledger, the pending set, and its view of nodes."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlmodel import Field, SQLModel

from yard_store.tables import ServiceTables

SCHEMA = "placement"
TABLES = ServiceTables(SCHEMA)


class PlacementTable(SQLModel):
    metadata = TABLES.metadata


def _trace() -> Any:
    return Field(default=None, sa_column=Column(JSONB(none_as_null=True)))


def _time(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(TIMESTAMP(timezone=True), nullable=nullable))


class NodeRow(PlacementTable, table=True):
    """A node as inventory describes it, and the epoch of its agent as the agent says.

    The offsets are those of the newest facts folded, of either topic: older ones are repeats.
    """

    __tablename__ = "nodes"
    name: str = Field(primary_key=True)
    pool_key: str | None
    state: str | None
    cordoned: bool = False
    epoch: str | None
    agent_url: str = ""
    cpus: float = 0
    memory_bytes: int = Field(sa_column=Column(BigInteger))
    last_contact: datetime | None = _time()
    boot_id: str | None
    agent_offset: int = Field(default=-1, sa_column=Column(BigInteger, nullable=False))
    inventory_offset: int = Field(default=-1, sa_column=Column(BigInteger, nullable=False))


class DeviceRow(PlacementTable, table=True):
    """`allocation_id` is the ledger: whoever stands here holds the device. Set and cleared by compare-and-set only."""

    __tablename__ = "devices"
    uuid: str = Field(primary_key=True)
    node: str
    idx: int
    model: str
    memory_bytes: int = Field(sa_column=Column(BigInteger))
    healthy: bool
    present: bool
    allocation_id: str | None


class AttemptRow(PlacementTable, table=True):
    """`attention`: something happened since the cycle last looked."""

    __tablename__ = "attempts"
    attempt_id: str = Field(primary_key=True)
    job_id: str
    project_id: str
    attempt: int
    queue: str
    name: str
    pool_key: str
    priority: int
    submitted_at: datetime = _time(nullable=False)
    pending_since: datetime = _time(nullable=False)
    spec: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    state: str
    attention: bool
    reason: str | None
    stop_reason: str | None
    stop_grace_seconds: float | None
    stop_sent: bool = False
    withdrawn: bool = False
    started_sent: bool = False
    lost_since: datetime | None = _time()
    ended_at: datetime | None = _time()
    trace: dict[str, str] | None = _trace()
    correlation_id: str | None
    stop_trace: dict[str, str] | None = _trace()


class AllocationRow(PlacementTable, table=True):
    """One task of an attempt. Booked from `granted_at` to `released_at`; `lost_micros` of that are not billed.

    `billed_since`: the start of its last span on the meter, which is its grant or its last return from being lost.
    `command` is what its last command says beside the work, which follows from the attempt.
    """

    __tablename__ = "allocations"
    allocation_id: str = Field(primary_key=True)
    attempt_id: str
    job_id: str
    project_id: str
    task_rank: int
    node: str
    epoch: str
    device_uuids: list[str] = Field(sa_column=Column(JSONB, nullable=False))
    cpus: float
    memory_bytes: int = Field(sa_column=Column(BigInteger))
    state: str
    command_seq: int
    command_type: str
    command: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    commanded_at: datetime = _time(nullable=False)
    granted_at: datetime = _time(nullable=False)
    billed_since: datetime = _time(nullable=False)
    ready: bool = False
    master_addr: str | None
    master_port: int | None
    started: bool = False
    outcome: str | None
    reason: str | None
    exit_code: int | None
    signal: int | None
    detail: str | None = Field(sa_column=Column(Text))
    emptied: bool = False
    lost_since: datetime | None = _time()
    lost_micros: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    released_at: datetime | None = _time()
