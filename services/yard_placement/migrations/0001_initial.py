"""The ledger, the pending set, and the view of nodes."""

from alembic import op

from yard_store.common_schema import create_common_tables

revision = "0001"
down_revision = None

STATEMENTS = (
    """
CREATE TABLE placement.nodes (
    name text PRIMARY KEY, pool_key text, state text, cordoned boolean NOT NULL DEFAULT false, epoch text,
    agent_url text NOT NULL DEFAULT '', cpus float8 NOT NULL DEFAULT 0, memory_bytes bigint NOT NULL DEFAULT 0,
    last_contact timestamptz
)""",
    """
CREATE TABLE placement.devices (
    uuid text PRIMARY KEY, node text NOT NULL, idx int NOT NULL, model text NOT NULL, memory_bytes bigint NOT NULL,
    healthy boolean NOT NULL, present boolean NOT NULL, allocation_id text
) WITH (fillfactor = 50)""",
    "CREATE INDEX devices_node ON placement.devices (node)",
    """
CREATE TABLE placement.attempts (
    attempt_id text PRIMARY KEY, job_id text NOT NULL, project_id text NOT NULL, attempt int NOT NULL,
    queue text NOT NULL, name text NOT NULL, pool_key text NOT NULL, priority int NOT NULL,
    submitted_at timestamptz NOT NULL, spec jsonb NOT NULL, state text NOT NULL, attention boolean NOT NULL,
    reason text, stop_reason text, stop_grace_seconds float8, stop_sent boolean NOT NULL DEFAULT false,
    withdrawn boolean NOT NULL DEFAULT false, started_sent boolean NOT NULL DEFAULT false,
    lost_since timestamptz, ended_at timestamptz
) WITH (fillfactor = 70)""",
    # The pending set in its order.
    """
CREATE INDEX attempts_pending ON placement.attempts (pool_key, priority DESC, submitted_at, job_id)
    WHERE state = 'pending' AND NOT withdrawn""",
    "CREATE INDEX attempts_attention ON placement.attempts (pool_key, attempt_id) WHERE attention",
    "CREATE INDEX attempts_ended ON placement.attempts (ended_at) WHERE ended_at IS NOT NULL",
    """
CREATE TABLE placement.allocations (
    allocation_id text PRIMARY KEY, attempt_id text NOT NULL, job_id text NOT NULL, project_id text NOT NULL,
    task_rank int NOT NULL, node text NOT NULL, epoch text NOT NULL, device_uuids jsonb NOT NULL,
    cpus float8 NOT NULL, memory_bytes bigint NOT NULL, state text NOT NULL, command_seq int NOT NULL,
    command_type text NOT NULL, command jsonb NOT NULL, commanded_at timestamptz NOT NULL,
    granted_at timestamptz NOT NULL, ready boolean NOT NULL DEFAULT false, master_addr text, master_port int,
    started boolean NOT NULL DEFAULT false, outcome text, reason text, exit_code int, signal int, detail text,
    emptied boolean NOT NULL DEFAULT false, lost_since timestamptz, lost_micros bigint NOT NULL DEFAULT 0,
    released_at timestamptz
) WITH (fillfactor = 70)""",
    "CREATE INDEX allocations_attempt ON placement.allocations (attempt_id)",
    "CREATE INDEX allocations_live ON placement.allocations (node) WHERE released_at IS NULL",
)


def upgrade() -> None:
    create_common_tables(op, "placement")
    for statement in STATEMENTS:
        op.execute(statement)
