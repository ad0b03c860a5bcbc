"""The schema of the suites' own service: the common tables, and one where effects can be counted."""

from alembic import op

from yard_store.common_schema import create_common_tables, create_outbox

revision = "0001"
down_revision = None


def upgrade() -> None:
    create_common_tables(op, "contract")
    create_outbox(op, "contract")
    op.execute("CREATE TABLE contract.effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, n int)")
