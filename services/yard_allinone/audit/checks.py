"""The invariants as queries: each returns the rows that break it, so an empty answer is a proof.

The only place that reads the schemas of several services: an audit that asked each service for its view could not see a
consistent whole. Nothing is written. Ids are those of the architecture's list of invariants.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """`sql` returns offending rows; its first column names the row, for comparing two readings."""

    invariant: str
    title: str
    sql: str


CHECKS: tuple[Check, ...] = (
    Check(
        "INV-1",
        "a device is held by at most one allocation, and by the one that lists it",
        """
        SELECT d.uuid, d.node, d.allocation_id AS held_by, l.allocation_id AS listed_by
        FROM (SELECT allocation_id, jsonb_array_elements_text(device_uuids) AS uuid
              FROM placement.allocations WHERE released_at IS NULL) l
        FULL JOIN (SELECT * FROM placement.devices WHERE allocation_id IS NOT NULL) d ON d.uuid = l.uuid
        WHERE d.allocation_id IS DISTINCT FROM l.allocation_id ORDER BY 1
        """,
    ),
    Check(
        "INV-1",
        "CPU cores and memory booked on a node are at most what it has",
        """
        SELECT n.name, n.cpus, u.cpus AS booked_cpus, n.memory_bytes, u.memory AS booked_memory_bytes
        FROM placement.nodes n
        JOIN (SELECT node, sum(cpus) AS cpus, sum(memory_bytes) AS memory FROM placement.allocations
              WHERE released_at IS NULL GROUP BY node) u ON u.node = n.name
        WHERE n.state = 'ready' AND (u.cpus > n.cpus + 1e-6 OR u.memory > n.memory_bytes) ORDER BY 1
        """,
    ),
    Check(
        "INV-2",
        "a job has at most one live attempt",
        """
        SELECT job_id, array_agg(attempt_id ORDER BY attempt_id) AS attempts FROM placement.attempts
        WHERE state <> 'ended' AND NOT withdrawn GROUP BY job_id HAVING count(*) > 1 ORDER BY 1
        """,
    ),
    Check(
        "INV-3",
        "a gang is granted as a whole or not at all",
        """
        SELECT a.attempt_id, a.state, (a.spec->'tasks'->>'count')::int AS asked, count(l.allocation_id) AS granted
        FROM placement.attempts a LEFT JOIN placement.allocations l USING (attempt_id)
        GROUP BY a.attempt_id
        HAVING count(l.allocation_id) NOT IN (0, (a.spec->'tasks'->>'count')::int)
            OR (a.state NOT IN ('pending', 'ended') AND count(l.allocation_id) = 0) ORDER BY 1
        """,
    ),
    Check(
        "INV-4",
        "a queue's usage equals the sum of its jobs' claims",
        """
        SELECT q.name, q.used_gpus, coalesce(sum(j.claimed_gpus), 0) AS claimed
        FROM admission.queues q LEFT JOIN admission.jobs j ON j.queue = q.name AND j.claimed_gpus > 0
        GROUP BY q.name HAVING q.used_gpus <> coalesce(sum(j.claimed_gpus), 0) ORDER BY 1
        """,
    ),
    Check(
        "INV-4",
        "a claim has a live attempt",
        """
        SELECT j.job_id, j.state, j.claimed_gpus, p.state AS attempt_state
        FROM admission.jobs j LEFT JOIN placement.attempts p ON p.attempt_id = j.attempt_id
        WHERE j.claimed_gpus > 0 AND (p.attempt_id IS NULL OR p.state = 'ended') ORDER BY 1
        """,
    ),
    Check(
        "INV-5",
        "a live attempt belongs to a live job, and a job that is placed has an attempt",
        """
        SELECT coalesce(j.job_id, p.job_id) AS job_id, j.state AS job_state, p.attempt_id, p.state AS attempt_state
        FROM (SELECT * FROM placement.attempts WHERE state <> 'ended' AND NOT withdrawn) p
        FULL JOIN (SELECT * FROM admission.jobs
                   WHERE state IN ('admitted', 'starting', 'running', 'cancelling', 'lost')) j
            ON j.attempt_id = p.attempt_id
        LEFT JOIN admission.jobs q ON q.attempt_id = p.attempt_id
        WHERE (p.attempt_id IS NULL) OR (j.job_id IS NULL AND q.state IS DISTINCT FROM 'queued') ORDER BY 1
        """,
    ),
    Check(
        "INV-5",
        "what people are shown of a job is what admission decided",
        """
        SELECT coalesce(j.job_id, g.job_id) AS job_id, j.state AS admission, g.state AS shown
        FROM admission.jobs j FULL JOIN gateway.jobs g ON g.job_id = j.job_id
        WHERE j.state IS DISTINCT FROM g.state
            -- Either side forgets ended jobs in its own time.
            AND NOT (j.job_id IS NULL AND g.ended_at IS NOT NULL) AND NOT (g.job_id IS NULL AND j.ended_at IS NOT NULL)
        ORDER BY 1 LIMIT 100
        """,
    ),
    Check(
        "INV-5",
        "no event waits in the dead letters; `yard dlq show` shows one, `yard dlq retry` has its key tried again",
        # Not how many: while more queue behind, the row would change and be taken for one that is on its way.
        " UNION ALL ".join(
            f"SELECT '{schema}/' || topic || '/' || key AS parked, max(error) AS error, "  # noqa: S608
            f"'yard dlq show {schema} ' || topic || '/' || partition || '@' || min(log_offset) AS see "
            f"FROM {schema}.parked GROUP BY topic, partition, key"
            for schema in ("gateway", "admission", "placement", "inventory", "billing")
        ),
    ),
    Check(
        "INV-7",
        "billed seconds equal granted seconds",
        """
        SELECT l.allocation_id, l.granted_micros, coalesce(b.micros, 0) AS billed_micros
        FROM (SELECT allocation_id, jsonb_array_length(device_uuids) *
                ((extract(epoch FROM released_at - granted_at) * 1000000)::bigint - lost_micros) AS granted_micros
              FROM placement.allocations WHERE released_at IS NOT NULL) l
        LEFT JOIN (SELECT allocation_id, sum(device_micros) AS micros FROM billing.usage_lines GROUP BY 1) b
            USING (allocation_id)
        WHERE l.granted_micros <> coalesce(b.micros, 0) ORDER BY 1 LIMIT 100
        """,
    ),
    Check(
        "INV-7",
        "an allocation is on the meter exactly while it is granted",
        """
        SELECT coalesce(l.allocation_id, b.allocation_id) AS allocation_id, l.allocation_id IS NOT NULL AS granted,
               b.allocation_id IS NOT NULL AS metered
        FROM (SELECT allocation_id FROM placement.allocations WHERE released_at IS NULL AND lost_since IS NULL) l
        FULL JOIN (SELECT allocation_id FROM billing.accounts WHERE open_since IS NOT NULL) b USING (allocation_id)
        WHERE l.allocation_id IS NULL OR b.allocation_id IS NULL ORDER BY 1
        """,
    ),
    Check(
        "INV-10",
        "a device is handed on only after its former holder ended and was seen gone",
        """
        SELECT allocation_id, outcome, emptied, released_at FROM placement.allocations
        WHERE released_at IS NOT NULL AND (outcome IS NULL OR NOT emptied) ORDER BY 1
        """,
    ),
)
