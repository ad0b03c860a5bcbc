"""The tables that every service's schema has: what it consumed, what it owns, what is due, what is parked."""

from typing import Any

import sqlalchemy as sa

TIMESTAMP = sa.TIMESTAMP(timezone=True)


class ServiceTables:
    """The common tables of one service, in its own PostgreSQL schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.metadata = sa.MetaData(schema=schema)
        self.offsets = sa.Table(
            "offsets",
            self.metadata,
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True),
            sa.Column("incarnation", sa.Text, nullable=False, comment="identity of the topic the offset belongs to"),
            sa.Column("next_offset", sa.BigInteger, nullable=False),
        )
        self.producers = sa.Table(
            "producers",
            self.metadata,
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True),
            sa.Column("source", sa.Text, primary_key=True),
            sa.Column("last_seq", sa.BigInteger, nullable=False),
        )
        self.ownership = sa.Table(
            "ownership",
            self.metadata,
            sa.Column("scope", sa.Text, primary_key=True),
            sa.Column("term", sa.BigInteger, nullable=False),
            sa.Column("owner", sa.Text, nullable=False),
            sa.Column("last_time", TIMESTAMP, nullable=True, comment="the scope's ledger clock"),
        )
        self.timers = sa.Table(
            "timers",
            self.metadata,
            sa.Column("scope", sa.Text, primary_key=True),
            sa.Column("kind", sa.Text, primary_key=True),
            sa.Column("key", sa.Text, primary_key=True),
            sa.Column("due_at", TIMESTAMP, nullable=False),
            sa.Index("timers_due", "scope", "due_at"),
        )
        self.parked = sa.Table(
            "parked",
            self.metadata,
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True),
            sa.Column("log_offset", sa.BigInteger, primary_key=True),
            sa.Column("key", sa.Text, nullable=False),
            sa.Column("type", sa.Text, nullable=False),
            sa.Column("headers", sa.Text, nullable=False),
            sa.Column("value", sa.LargeBinary, nullable=False),
            sa.Column("error", sa.Text, nullable=True, comment="null: queued behind an earlier event of its key"),
            sa.Column("parked_at", TIMESTAMP, nullable=False),
            sa.Column("retry_requested_at", TIMESTAMP, nullable=True, comment="somebody wants the key tried again"),
            sa.Index("parked_key", "topic", "key"),
        )
        self.outbox = sa.Table(
            "outbox",
            self.metadata,
            sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
            sa.Column("topic", sa.Text, nullable=False),
            sa.Column("key", sa.Text, nullable=False),
            sa.Column("headers", sa.Text, nullable=False),
            sa.Column("value", sa.LargeBinary, nullable=False),
            sa.Column("created_at", TIMESTAMP, nullable=False),
            sa.Column("partition", sa.Integer, nullable=True, comment="null until the relay numbered the row"),
            sa.Column("publish_seq", sa.BigInteger, nullable=True),
        )
        self.published = sa.Table(
            "published",
            self.metadata,
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True),
            sa.Column("last_seq", sa.BigInteger, nullable=False),
        )


def rows(result: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    """All rows of a result as plain dictionaries."""
    return [dict(row) for row in result.mappings()]
