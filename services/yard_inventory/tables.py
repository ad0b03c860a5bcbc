"""Inventory's tables: clusters, nodes, devices."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlmodel import Field, SQLModel

from yard_store.tables import ServiceTables

SCHEMA = "inventory"
TABLES = ServiceTables(SCHEMA)


class InventoryTable(SQLModel):
    metadata = TABLES.metadata


def _time(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(TIMESTAMP(timezone=True), nullable=nullable))


class ClusterRow(InventoryTable, table=True):
    """The watch over a cluster, see `liveness.Watch`. `watching_term`: the scope's term under which it began."""

    __tablename__ = "clusters"
    name: str = Field(primary_key=True)
    watching_term: int = Field(sa_column=Column(BigInteger, nullable=False))
    watching_since: datetime = _time()
    frozen_since: datetime | None = _time(nullable=True)
    grace_until: datetime | None = _time(nullable=True)


class NodeRow(InventoryTable, table=True):
    """`folded_offset`: where in `nodes.events` the last fact about this node stood, so that a replay changes nothing.

    `last_contact` is in no index: a heartbeat rewrites the row in its page and nothing else.
    """

    __tablename__ = "nodes"
    name: str = Field(primary_key=True)
    cluster: str
    pool: str
    state: str
    cordoned: bool
    generation: int
    boot_id: str
    agent_url: str
    cpus: float
    memory_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    labels: dict[str, str] = Field(sa_column=Column(JSONB, nullable=False))
    simulated: bool
    last_contact: datetime = _time()
    folded_offset: int = Field(sa_column=Column(BigInteger, nullable=False))


class DeviceRow(InventoryTable, table=True):
    """A physical device is in one node: its uuid is the key of the whole fleet."""

    __tablename__ = "devices"
    uuid: str = Field(primary_key=True)
    node: str
    idx: int
    model: str
    memory_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    healthy: bool
    detail: str | None
