"""Billing's tables: one account per allocation, and the usage lines."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlmodel import Field, SQLModel

from yard_store.tables import ServiceTables

SCHEMA = "billing"
TABLES = ServiceTables(SCHEMA)


class BillingTable(SQLModel):
    metadata = TABLES.metadata


def _time(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(TIMESTAMP(timezone=True), nullable=nullable))


class AccountRow(BillingTable, table=True):
    """See `spans.Account`. `open_since` is null while the allocation costs nothing: lost, or released."""

    __tablename__ = "accounts"
    allocation_id: str = Field(primary_key=True)
    project_id: str
    queue: str
    job_id: str
    attempt: int
    devices: dict[str, int] = Field(sa_column=Column(JSONB, nullable=False))
    spans: int
    open_since: datetime | None = _time(nullable=True)
    ledger_time: datetime = _time()
    released: bool


class UsageLineRow(BillingTable, table=True):
    """A closed span on one model: written once, never changed. device_micros = devices · (until − since) in µs."""

    __tablename__ = "usage_lines"
    allocation_id: str = Field(primary_key=True)
    model: str = Field(primary_key=True)
    span: int = Field(primary_key=True)
    project_id: str
    queue: str
    job_id: str
    attempt: int
    devices: int
    since: datetime = _time()
    until: datetime = _time()
    device_micros: int = Field(sa_column=Column(BigInteger, nullable=False))
