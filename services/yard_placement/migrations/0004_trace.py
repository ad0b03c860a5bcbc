"""The trace context and the conversation of an attempt, for what the cycle decides later than the request."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE placement.attempts ADD COLUMN trace jsonb, ADD COLUMN correlation_id text, "
        "ADD COLUMN stop_trace jsonb"
    )
