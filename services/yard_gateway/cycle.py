"""Retention: what is forgotten, when, and in which order."""

from datetime import timedelta

import sqlalchemy as sa

from yard_gateway.settings import GatewaySettings
from yard_store.unit_of_work import UnitOfWork

SCOPE = "retention"
_TIMER = "prune"
_LIMIT = 2000

# Events go from the front only: what is left has no gap, so a reader that resumes behind it is told so, never misled.
_EVENTS = sa.text(
    "WITH oldest AS (SELECT seq, recorded_at FROM gateway.events ORDER BY seq LIMIT :limit), "
    "kept AS (SELECT min(seq) AS seq FROM oldest WHERE recorded_at >= :before) "
    "DELETE FROM gateway.events e USING oldest o, kept k "
    "WHERE e.seq = o.seq AND (k.seq IS NULL OR o.seq < k.seq)"
)
_JOBS = sa.text(
    "DELETE FROM gateway.jobs WHERE job_id IN ("
    "  SELECT job_id FROM gateway.jobs WHERE ended_at < :before ORDER BY ended_at LIMIT :limit)"
)
_KEYS = sa.text(
    "DELETE FROM gateway.idempotency WHERE (actor, key) IN ("
    "  SELECT actor, key FROM gateway.idempotency WHERE created_at < :before ORDER BY created_at LIMIT :limit)"
)


class Retention:
    """The cycle of scope `retention`: a bounded piece of each table per call."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._every = timedelta(seconds=settings.prune_every_seconds)
        self._rules = (
            (_EVENTS, timedelta(seconds=settings.keep_events_seconds)),
            (_JOBS, timedelta(seconds=settings.keep_ended_jobs_seconds)),
            (_KEYS, timedelta(seconds=settings.keep_idempotency_seconds)),
        )

    async def __call__(self, uow: UnitOfWork, scope: str) -> bool:
        await uow.take_due_timers(scope)
        more = False
        for statement, age in self._rules:
            done = await uow.connection.execute(statement, {"before": uow.now - age, "limit": _LIMIT})
            more = more or done.rowcount >= _LIMIT
        uow.set_timer(scope, _TIMER, "", uow.now + self._every)
        return more
