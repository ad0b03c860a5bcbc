"""What of a job is parked: told by the dead-letter topics, shown with the job."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = (
    # A job that is forgotten takes this with it.
    """
CREATE TABLE gateway.parked_jobs (
    service text NOT NULL, topic text NOT NULL, partition int NOT NULL, log_offset bigint NOT NULL,
    job_id text NOT NULL REFERENCES gateway.jobs ON DELETE CASCADE, error text, parked_at timestamptz NOT NULL,
    PRIMARY KEY (service, topic, partition, log_offset)
)""",
    "CREATE INDEX parked_jobs_job ON gateway.parked_jobs (job_id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
