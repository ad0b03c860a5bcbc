"""What admission's gauges show, read in one cheap statement: ended jobs are not looked at."""

from functools import partial

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_obs.catalogue import JOB_COUNT
from yard_obs.metrics import Gauge, Metrics
from yard_runtime.gauges import TableGauges
from yard_store.unit_of_work import Store

# Served by the index of live jobs.
_LIVE = sa.text("SELECT queue, state, count(*) FROM admission.jobs WHERE ended_at IS NULL GROUP BY queue, state")


async def live_jobs(connection: AsyncConnection) -> dict[tuple[str, str], int]:
    """(queue, state) → number of jobs that have not ended."""
    return {(queue, state): count for queue, state, count in await connection.execute(_LIVE)}


def gauges(store: Store, metrics: Metrics) -> TableGauges:
    jobs = metrics.gauge(JOB_COUNT)
    return TableGauges(store, partial(_show, jobs), lambda: jobs.replace(()))


async def _show(jobs: Gauge, connection: AsyncConnection) -> None:
    found = await live_jobs(connection)
    jobs.replace((count, {"queue": queue, "state": state}) for (queue, state), count in found.items())
