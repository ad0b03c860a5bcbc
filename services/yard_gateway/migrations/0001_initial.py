"""Callers, idempotency keys, the read model of jobs, and the events people follow."""

from alembic import op

from yard_store.common_schema import create_common_tables

revision = "0001"
down_revision = None

STATEMENTS = (
    "CREATE TABLE gateway.counters (name text PRIMARY KEY, last_value bigint NOT NULL) WITH (fillfactor = 10)",
    "INSERT INTO gateway.counters VALUES ('events', 0), ('jobs', 0)",
    """
CREATE TABLE gateway.tokens (
    token_id text PRIMARY KEY, name text NOT NULL, role text NOT NULL, projects jsonb NOT NULL, digest text NOT NULL,
    created_by text NOT NULL, created_at timestamptz NOT NULL, revoked_at timestamptz
)""",
    "CREATE UNIQUE INDEX tokens_digest ON gateway.tokens (digest) WHERE revoked_at IS NULL",
    "CREATE UNIQUE INDEX tokens_name ON gateway.tokens (name) WHERE revoked_at IS NULL",
    """
CREATE TABLE gateway.idempotency (
    actor text NOT NULL, key text NOT NULL, digest text NOT NULL, job_id text NOT NULL, created_at timestamptz NOT NULL,
    PRIMARY KEY (actor, key)
)""",
    "CREATE INDEX idempotency_age ON gateway.idempotency (created_at)",
    # No index has a column that changes while a job lives, so that facts are folded as heap-only updates.
    """
CREATE TABLE gateway.jobs (
    job_id text PRIMARY KEY, seq bigint NOT NULL, name text NOT NULL, project text NOT NULL, queue text NOT NULL,
    tier text NOT NULL, priority int NOT NULL, state text NOT NULL, reason text, detail text, attempt int NOT NULL,
    tasks text NOT NULL, document text NOT NULL, labels jsonb NOT NULL, submitted_by text NOT NULL,
    submitted_at timestamptz NOT NULL, started_at timestamptz, ended_at timestamptz, exit_code int,
    places text NOT NULL, agents text NOT NULL, task_ends text NOT NULL, fact_at timestamptz,
    fact_offset bigint NOT NULL
) WITH (fillfactor = 60)""",
    "CREATE UNIQUE INDEX jobs_newest ON gateway.jobs (seq)",
    "CREATE INDEX jobs_project ON gateway.jobs (project, seq)",
    "CREATE INDEX jobs_active ON gateway.jobs (seq) WHERE ended_at IS NULL",
    "CREATE INDEX jobs_ended ON gateway.jobs (ended_at) WHERE ended_at IS NOT NULL",
    "CREATE INDEX jobs_labels ON gateway.jobs USING gin (labels jsonb_path_ops)",
    """
CREATE TABLE gateway.events (
    seq bigint PRIMARY KEY, event_id text NOT NULL, type text NOT NULL, time timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL, job_id text, project text, node text, data text NOT NULL
)""",
    "CREATE UNIQUE INDEX events_id ON gateway.events (event_id)",
    "CREATE INDEX events_job ON gateway.events (job_id, seq) WHERE job_id IS NOT NULL",
    "CREATE TABLE gateway.queues (queue text PRIMARY KEY, gpu_quota bigint NOT NULL)",
)


def upgrade() -> None:
    create_common_tables(op, "gateway")
    for statement in STATEMENTS:
        op.execute(statement)
