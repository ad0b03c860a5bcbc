"""Accounts of allocations, and usage lines that nobody can change."""

from alembic import op

from yard_store.common_schema import create_common_tables

revision = "0001"
down_revision = None

STATEMENTS = (
    """
CREATE TABLE billing.accounts (
    allocation_id text PRIMARY KEY, project_id text NOT NULL, queue text NOT NULL, job_id text NOT NULL,
    attempt int NOT NULL, devices jsonb NOT NULL, spans int NOT NULL, open_since timestamptz,
    ledger_time timestamptz NOT NULL, released boolean NOT NULL,
    CHECK (NOT released OR open_since IS NULL)
) WITH (fillfactor = 70)""",
    "CREATE INDEX accounts_open ON billing.accounts (project_id) WHERE open_since IS NOT NULL",
    """
CREATE TABLE billing.usage_lines (
    allocation_id text NOT NULL, model text NOT NULL, span int NOT NULL CHECK (span > 0), project_id text NOT NULL,
    queue text NOT NULL, job_id text NOT NULL, attempt int NOT NULL, devices int NOT NULL CHECK (devices > 0),
    since timestamptz NOT NULL, until timestamptz NOT NULL, device_micros bigint NOT NULL,
    PRIMARY KEY (allocation_id, model, span),
    CHECK (until >= since),
    CHECK (device_micros = devices * extract(epoch FROM until - since) * 1000000)
)""",
    "CREATE INDEX usage_lines_project ON billing.usage_lines (project_id, until)",
    "CREATE INDEX usage_lines_job ON billing.usage_lines (job_id)",
    # The law that lines are immutable, kept by the database itself.
    """
CREATE FUNCTION billing.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'usage lines are immutable';
END $$""",
    """
CREATE TRIGGER usage_lines_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON billing.usage_lines
    FOR EACH STATEMENT EXECUTE FUNCTION billing.refuse_change()""",
)


def upgrade() -> None:
    create_common_tables(op, "billing")
    for statement in STATEMENTS:
        op.execute(statement)
