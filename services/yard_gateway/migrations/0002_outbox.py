"""The outbox of the Kafka bus, and retries of parked keys."""

from alembic import op

from yard_store.common_schema import create_outbox

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    create_outbox(op, "gateway")
