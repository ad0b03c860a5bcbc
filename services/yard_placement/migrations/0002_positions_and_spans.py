"""Where the facts of a node come from, since when an attempt waits, and where the billed span of an allocation began."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    # What is at or below these offsets was folded before: the log may be read again from anywhere.
    "ALTER TABLE placement.nodes ADD COLUMN boot_id text, ADD COLUMN agent_offset bigint NOT NULL DEFAULT -1, "
    "ADD COLUMN inventory_offset bigint NOT NULL DEFAULT -1",
    "ALTER TABLE placement.attempts ADD COLUMN pending_since timestamptz",
    "UPDATE placement.attempts SET pending_since = submitted_at",
    "ALTER TABLE placement.attempts ALTER COLUMN pending_since SET NOT NULL",
    "ALTER TABLE placement.allocations ADD COLUMN billed_since timestamptz",
    "UPDATE placement.allocations SET billed_since = granted_at",
    "ALTER TABLE placement.allocations ALTER COLUMN billed_since SET NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
