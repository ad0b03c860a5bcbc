"""The trace context and the conversation of a job, for what is decided later than the request that asked for it."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE admission.jobs ADD COLUMN trace jsonb, ADD COLUMN correlation_id text, "
        "ADD COLUMN attempt_trace jsonb"
    )
