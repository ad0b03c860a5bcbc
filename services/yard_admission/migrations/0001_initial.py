"""Queues, projects, jobs, and the fleet as far as admission cares."""

from alembic import op

from yard_store.common_schema import create_common_tables

revision = "0001"
down_revision = None

STATEMENTS = (
    """
CREATE TABLE admission.queues (
    name text PRIMARY KEY, gpu_quota int NOT NULL CHECK (gpu_quota >= 0),
    used_gpus int NOT NULL DEFAULT 0 CHECK (used_gpus >= 0),
    attention boolean NOT NULL DEFAULT true, looked_at timestamptz
) WITH (fillfactor = 20)""",
    "CREATE TABLE admission.projects (name text PRIMARY KEY)",
    """
CREATE TABLE admission.jobs (
    job_id text PRIMARY KEY, project_id text NOT NULL, queue text NOT NULL, name text NOT NULL,
    priority int NOT NULL, submitted_at timestamptz NOT NULL, total_gpus int NOT NULL CHECK (total_gpus > 0),
    max_attempts int NOT NULL, max_run_seconds float8, work jsonb NOT NULL,
    state text NOT NULL, reason text, held text, attempt int NOT NULL, place_no int NOT NULL, attempt_id text,
    placed boolean NOT NULL, claimed_gpus int NOT NULL, stop_cause text, decided_at timestamptz,
    queued_at timestamptz NOT NULL, started boolean NOT NULL, run_since timestamptz,
    run_used_seconds float8 NOT NULL, places jsonb, lost_allocations jsonb,
    waiting boolean NOT NULL, untold boolean NOT NULL, ended_at timestamptz,
    CONSTRAINT claim_is_all_or_nothing CHECK (claimed_gpus IN (0, total_gpus)),
    CONSTRAINT only_placed_jobs_claim CHECK (placed OR claimed_gpus = 0),
    CONSTRAINT ended_jobs_are_not_placed CHECK (ended_at IS NULL OR NOT (placed OR waiting)),
    CONSTRAINT untold_jobs_wait CHECK (waiting OR NOT untold)
) WITH (fillfactor = 60)""",
    # The candidates of a queue in their order.
    "CREATE INDEX jobs_waiting ON admission.jobs (queue, priority DESC, submitted_at, job_id) WHERE waiting",
    "CREATE INDEX jobs_untold ON admission.jobs (queued_at, job_id) WHERE untold",
    "CREATE INDEX jobs_held ON admission.jobs (held, queue) WHERE held IS NOT NULL",
    "CREATE INDEX jobs_live ON admission.jobs (queue) WHERE ended_at IS NULL",
    "CREATE INDEX jobs_ended ON admission.jobs (ended_at) WHERE ended_at IS NOT NULL",
    """
CREATE TABLE admission.nodes (
    name text PRIMARY KEY, hardware text NOT NULL, schedulable boolean NOT NULL, log_offset bigint NOT NULL
) WITH (fillfactor = 50)""",
)


def upgrade() -> None:
    create_common_tables(op, "admission")
    for statement in STATEMENTS:
        op.execute(statement)
