"""The log: topics, partitions, records, and the one function that appends to it."""

from alembic import op

revision = "0001"
down_revision = None

TABLES = """
CREATE TABLE yard_bus.topic (
    topic_id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL UNIQUE,
    partitions        int NOT NULL CHECK (partitions > 0),
    policy            text NOT NULL,
    retention_seconds bigint NOT NULL,
    incarnation       text NOT NULL
);
CREATE TABLE yard_bus.partition (
    topic_id     int NOT NULL REFERENCES yard_bus.topic ON DELETE CASCADE,
    partition    int NOT NULL,
    first_offset bigint NOT NULL DEFAULT 0,
    next_offset  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 10);
CREATE TABLE yard_bus.log (
    topic_id    int NOT NULL,
    partition   int NOT NULL,
    log_offset  bigint NOT NULL,
    key         text NOT NULL,
    type        text NOT NULL,
    headers     text NOT NULL,
    value       bytea NOT NULL,
    appended_at timestamptz NOT NULL,
    PRIMARY KEY (topic_id, partition, log_offset)
);
"""

# Locks are taken in (topic, partition) order, so two appenders never wait for one another in a circle; each statement
# of a volatile function sees what was committed before it began, so the numbers read after the lock are the newest.
APPEND = """
CREATE FUNCTION yard_bus.append(
    p_topic int[], p_partition int[], p_key text[], p_type text[], p_headers text[], p_value bytea[], p_at timestamptz
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM yard_bus.partition p
    WHERE (p.topic_id, p.partition) IN (SELECT DISTINCT u.t, u.q FROM unnest(p_topic, p_partition) AS u(t, q))
    ORDER BY p.topic_id, p.partition FOR UPDATE;

    INSERT INTO yard_bus.log (topic_id, partition, log_offset, key, type, headers, value, appended_at)
    SELECT u.t, u.q, p.next_offset + row_number() OVER (PARTITION BY u.t, u.q ORDER BY u.n) - 1,
           u.k, u.y, u.h, u.v, p_at
    FROM unnest(p_topic, p_partition, p_key, p_type, p_headers, p_value) WITH ORDINALITY AS u(t, q, k, y, h, v, n)
    JOIN yard_bus.partition p ON p.topic_id = u.t AND p.partition = u.q;

    UPDATE yard_bus.partition p SET next_offset = p.next_offset + c.n
    FROM (SELECT u.t, u.q, count(*) AS n FROM unnest(p_topic, p_partition) AS u(t, q) GROUP BY u.t, u.q) c
    WHERE p.topic_id = c.t AND p.partition = c.q;

    PERFORM pg_notify('yard_bus', string_agg(DISTINCT u.t || '.' || u.q, ','))
    FROM unnest(p_topic, p_partition) AS u(t, q);
END $$;
"""

ENSURE_TOPIC = """
CREATE FUNCTION yard_bus.ensure_topic(
    p_name text, p_partitions int, p_policy text, p_retention bigint, p_incarnation text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found yard_bus.topic;
BEGIN
    INSERT INTO yard_bus.topic (name, partitions, policy, retention_seconds, incarnation)
    VALUES (p_name, p_partitions, p_policy, p_retention, p_incarnation)
    ON CONFLICT (name) DO UPDATE SET policy = p_policy, retention_seconds = p_retention
    RETURNING * INTO found;
    INSERT INTO yard_bus.partition (topic_id, partition)
    SELECT found.topic_id, n FROM generate_series(0, found.partitions - 1) AS n
    ON CONFLICT DO NOTHING;
END $$;
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute(APPEND)
    op.execute(ENSURE_TOPIC)
