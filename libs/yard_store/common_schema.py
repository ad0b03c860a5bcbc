"""The migration that creates the common tables (`tables.ServiceTables`), called by every service's first migration."""

from typing import Any

_TABLES = (
    """
CREATE TABLE {schema}.offsets (
    topic text NOT NULL, partition int NOT NULL, incarnation text NOT NULL, next_offset bigint NOT NULL,
    PRIMARY KEY (topic, partition)
) WITH (fillfactor = 20)""",
    """
CREATE TABLE {schema}.producers (
    topic text NOT NULL, partition int NOT NULL, source text NOT NULL, last_seq bigint NOT NULL,
    PRIMARY KEY (topic, partition, source)
) WITH (fillfactor = 20)""",
    """
CREATE TABLE {schema}.ownership (
    scope text PRIMARY KEY, term bigint NOT NULL, owner text NOT NULL, last_time timestamptz
) WITH (fillfactor = 20)""",
    """
CREATE TABLE {schema}.timers (
    scope text NOT NULL, kind text NOT NULL, key text NOT NULL, due_at timestamptz NOT NULL,
    PRIMARY KEY (scope, kind, key)
)""",
    "CREATE INDEX timers_due ON {schema}.timers (scope, due_at)",
    """
CREATE TABLE {schema}.parked (
    topic text NOT NULL, partition int NOT NULL, log_offset bigint NOT NULL, key text NOT NULL, type text NOT NULL,
    headers text NOT NULL, value bytea NOT NULL, error text, parked_at timestamptz NOT NULL,
    PRIMARY KEY (topic, partition, log_offset)
)""",
    "CREATE INDEX parked_key ON {schema}.parked (topic, key)",
)


_OUTBOX = (
    """
CREATE TABLE {schema}.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text NOT NULL, headers text NOT NULL,
    value bytea NOT NULL, created_at timestamptz NOT NULL, partition int, publish_seq bigint
)""",
    """
CREATE TABLE {schema}.published (
    topic text NOT NULL, partition int NOT NULL, last_seq bigint NOT NULL, PRIMARY KEY (topic, partition)
) WITH (fillfactor = 20)""",
    "ALTER TABLE {schema}.parked ADD COLUMN retry_requested_at timestamptz",
)


def create_outbox(op: Any, schema: str) -> None:
    """What a relay needs, and parked keys that somebody wants to have tried again."""
    for statement in _OUTBOX:
        op.execute(statement.format(schema=schema))


def create_common_tables(op: Any, schema: str) -> None:
    """`op` is Alembic's operations object. A change to these tables is a later function of its own, never an edit."""
    for statement in _TABLES:
        op.execute(statement.format(schema=schema))
