"""Clusters, nodes, devices."""

from alembic import op

from yard_store.common_schema import create_common_tables

revision = "0001"
down_revision = None

STATEMENTS = (
    """
CREATE TABLE inventory.clusters (
    name text PRIMARY KEY, watching_term bigint NOT NULL, watching_since timestamptz NOT NULL,
    frozen_since timestamptz, grace_until timestamptz
)""",
    """
CREATE TABLE inventory.nodes (
    name text PRIMARY KEY, cluster text NOT NULL, pool text NOT NULL, state text NOT NULL, cordoned boolean NOT NULL,
    generation int NOT NULL, boot_id text NOT NULL, agent_url text NOT NULL, cpus float8 NOT NULL,
    memory_bytes bigint NOT NULL CHECK (memory_bytes > 0), labels jsonb NOT NULL, simulated boolean NOT NULL,
    last_contact timestamptz NOT NULL, folded_offset bigint NOT NULL
) WITH (fillfactor = 50)""",
    """
CREATE TABLE inventory.devices (
    uuid text PRIMARY KEY, node text NOT NULL REFERENCES inventory.nodes, idx int NOT NULL, model text NOT NULL,
    memory_bytes bigint NOT NULL CHECK (memory_bytes > 0), healthy boolean NOT NULL, detail text
)""",
    "CREATE INDEX devices_node ON inventory.devices (node)",
)


def upgrade() -> None:
    create_common_tables(op, "inventory")
    for statement in STATEMENTS:
        op.execute(statement)
