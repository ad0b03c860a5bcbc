"""Reading and writing queues, projects, jobs and the view of the fleet, in bulk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_admission.job import JOB_FIELDS, MUTABLE_FIELDS, Held, Job
from yard_admission.tables import JobRow, NodeRow, ProjectRow, QueueRow
from yard_domain.states import JobState
from yard_store.bulk import any_of, bulk_insert, bulk_update

JOBS: sa.Table = JobRow.__table__  # type: ignore[attr-defined]
QUEUES: sa.Table = QueueRow.__table__  # type: ignore[attr-defined]
PROJECTS: sa.Table = ProjectRow.__table__  # type: ignore[attr-defined]
NODES: sa.Table = NodeRow.__table__  # type: ignore[attr-defined]

_JOB_COLUMNS = ", ".join(f"j.{name}" for name in JOB_FIELDS)


@dataclass(slots=True)
class Loaded:
    """A job and the row it was read from. `work`: tasks and run, where they were asked for."""

    job: Job
    stored: Sequence[Any]
    work: dict[str, Any] | None = None

    @property
    def counted_gpus(self) -> int:
        """The claim that its queue's usage counts for it."""
        return self.stored[_CLAIM]


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    gpu_quota: int
    used_gpus: int


_COLUMN = {name: index for index, name in enumerate(JOB_FIELDS)}
_CLAIM = _COLUMN["claimed_gpus"]


def _loaded(row: Sequence[Any], work: dict[str, Any] | None = None) -> Loaded:
    """`row`: the job's columns in the order of JOB_FIELDS."""
    job = Job(*row)
    job.state = JobState(job.state)
    if job.held is not None:
        job.held = Held(job.held)
    return Loaded(job, row, work)


def _ids_parameter(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=ARRAY(sa.Text))


# --- jobs ------------------------------------------------------------------------------------------------------------

_JOB_TYPES: dict[str, Any] = {name: JOBS.c[name].type for name in JOB_FIELDS}
_BY_ID = (
    sa.text(f"SELECT {_JOB_COLUMNS} FROM admission.jobs j WHERE j.job_id = ANY(:ids) ORDER BY j.job_id FOR UPDATE")  # noqa: S608 - names come from our tables
    .bindparams(_ids_parameter("ids"))
    .columns(**_JOB_TYPES)
)


async def jobs_by_id(connection: AsyncConnection, job_ids: Iterable[str]) -> dict[str, Loaded]:
    """The jobs among `job_ids` that exist, locked until the end of the transaction."""
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    found = await connection.execute(_BY_ID, {"ids": wanted})
    return {row[0]: _loaded(row) for row in found}


def _row(job: Job, names: Iterable[str]) -> dict[str, Any]:
    row = {name: getattr(job, name) for name in names}
    row["state"] = job.state.value
    row["waiting"] = job.waiting
    row["untold"] = job.untold
    return row


_ALWAYS = ("job_id", "state", "reason", "placed", "claimed_gpus", "decided_at")
_SELDOM = tuple(name for name in MUTABLE_FIELDS if name not in _ALWAYS)


def _changed_fields(jobs: Sequence[Loaded]) -> list[str]:
    """What to write: of the columns that most changes leave alone, those that any of the jobs has changed.

    Binding every column of every job costs more than finding this out.
    """
    return [
        *_ALWAYS,
        *(n for n in _SELDOM if any(getattr(loaded.job, n) != loaded.stored[_COLUMN[n]] for loaded in jobs)),
    ]


async def insert_jobs(connection: AsyncConnection, jobs: Sequence[tuple[Job, dict[str, Any]]]) -> None:
    """New jobs with their work. They claim nothing yet."""
    await bulk_insert(connection, JOBS, [_row(job, JOB_FIELDS) | {"work": work} for job, work in jobs])
    await _touch(connection, {}, {job.queue: True for job, _ in jobs if job.waiting})


async def save_jobs(
    connection: AsyncConnection, jobs: Sequence[Loaded], attention: Mapping[str, bool] | None = None
) -> None:
    """Write jobs back together with what their claims add to, or take from, their queues' usage (INV-4).

    `attention`: which queues the cycle must, or need not, look at again; by default those that a claim came back to or
    a candidate waits in.
    """
    if not jobs and not attention:
        return
    names = _changed_fields(jobs)
    await bulk_update(connection, JOBS, [_row(loaded.job, names) for loaded in jobs])
    deltas: dict[str, int] = {}
    wanted: dict[str, bool] = dict(attention or {})
    for loaded in jobs:
        job = loaded.job
        delta = job.claimed_gpus - loaded.counted_gpus
        if delta:
            deltas[job.queue] = deltas.get(job.queue, 0) + delta
        if attention is None and (delta < 0 or job.waiting):
            wanted[job.queue] = True
    await _touch(connection, deltas, wanted)


_TOUCH = sa.text(
    "UPDATE admission.queues q SET used_gpus = q.used_gpus + u.delta, "
    "attention = coalesce(u.attention, q.attention) "
    "FROM unnest(CAST(:names AS text[]), CAST(:deltas AS int[]), CAST(:attention AS boolean[])) "
    "AS u(name, delta, attention) "
    "WHERE q.name = u.name AND (u.delta <> 0 OR u.attention IS DISTINCT FROM q.attention)"
).bindparams(
    _ids_parameter("names"),
    sa.bindparam("deltas", type_=ARRAY(sa.Integer)),
    sa.bindparam("attention", type_=ARRAY(sa.Boolean)),
)


async def _touch(connection: AsyncConnection, deltas: Mapping[str, int], attention: Mapping[str, bool]) -> None:
    names = sorted({*deltas, *attention})
    if names:
        await connection.execute(
            _TOUCH,
            {
                "names": names,
                "deltas": [deltas.get(name, 0) for name in names],
                "attention": [attention.get(name) for name in names],
            },
        )


_UNTOLD = (
    sa.text(
        f"SELECT {_JOB_COLUMNS} FROM admission.jobs j JOIN admission.queues q ON q.name = j.queue "  # noqa: S608 - as above
        "WHERE j.untold AND NOT q.attention AND j.queued_at <= :before "
        "ORDER BY j.queued_at, j.job_id LIMIT :limit FOR UPDATE OF j"
    )
    .bindparams(sa.bindparam("before", type_=sa.TIMESTAMP(timezone=True)))
    .columns(**_JOB_TYPES)
)


async def untold_jobs(connection: AsyncConnection, queued_before: datetime, limit: int) -> list[Loaded]:
    """Candidates that wait since `queued_before` or longer, not told why, in queues that have been looked at."""
    found = await connection.execute(_UNTOLD, {"before": queued_before, "limit": limit})
    return [_loaded(row) for row in found]


_RELEASE_HOPELESS = sa.text(
    "UPDATE admission.jobs SET held = NULL, waiting = NOT placed WHERE held = 'hopeless' RETURNING queue"
)


async def release_hopeless(connection: AsyncConnection) -> None:
    """Jobs that no node could hold become candidates again; those still being withdrawn will, when they have been."""
    queues = {row.queue for row in await connection.execute(_RELEASE_HOPELESS)}
    await _touch(connection, {}, dict.fromkeys(sorted(queues), True))


_PRUNE = sa.text(
    "DELETE FROM admission.jobs WHERE job_id IN "
    "(SELECT job_id FROM admission.jobs WHERE ended_at < :before ORDER BY ended_at LIMIT :limit)"
).bindparams(sa.bindparam("before", type_=sa.TIMESTAMP(timezone=True)))


async def prune(connection: AsyncConnection, before: datetime, limit: int) -> int:
    """Forget jobs that ended before `before`; returns how many."""
    return (await connection.execute(_PRUNE, {"before": before, "limit": limit})).rowcount


# --- candidates ------------------------------------------------------------------------------------------------------

_QUEUES_WANTED = sa.text(
    "UPDATE admission.queues q SET looked_at = :now FROM (SELECT name FROM admission.queues WHERE attention "
    "ORDER BY looked_at NULLS FIRST, name LIMIT :limit FOR UPDATE) w WHERE q.name = w.name "
    "RETURNING q.name, q.gpu_quota, q.used_gpus"
).bindparams(sa.bindparam("now", type_=sa.TIMESTAMP(timezone=True)))

# Of each queue the candidates, in order, up to and with the first that the quota has no room for. Jobs larger than the
# whole quota take no room: they are on their way out of the order.
CANDIDATES = (
    sa.text(
        f"SELECT {_JOB_COLUMNS}, j.work FROM ("  # noqa: S608 - as above
        "  SELECT c.*, q.gpu_quota, q.used_gpus, "
        "    sum(CASE WHEN c.total_gpus <= q.gpu_quota THEN c.total_gpus ELSE 0 END)"
        "    OVER (PARTITION BY c.queue ORDER BY c.priority DESC, c.submitted_at, c.job_id"
        "          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before"
        "  FROM admission.queues q CROSS JOIN LATERAL ("
        "    SELECT * FROM admission.jobs w WHERE w.queue = q.name AND w.waiting"
        "    ORDER BY w.priority DESC, w.submitted_at, w.job_id LIMIT :limit) c"
        "  WHERE q.name = ANY(:queues)) j "
        "WHERE coalesce(j.before, 0) <= greatest(j.gpu_quota - j.used_gpus, 0) "
        "ORDER BY j.queue, j.priority DESC, j.submitted_at, j.job_id"
    )
    .bindparams(_ids_parameter("queues"))
    .columns(**_JOB_TYPES, work=JOBS.c.work.type)
)


async def queues_wanting_attention(connection: AsyncConnection, now: datetime, limit: int) -> list[Queue]:
    """Queues that something happened to, the one longest not looked at first; they count as looked at now."""
    found = await connection.execute(_QUEUES_WANTED, {"now": now, "limit": limit})
    return sorted((Queue(row.name, row.gpu_quota, row.used_gpus) for row in found), key=lambda queue: queue.name)


async def candidates(connection: AsyncConnection, queues: Sequence[Queue], limit: int) -> dict[str, list[Loaded]]:
    """Per queue at most `limit` candidates in order, the last being the first that does not fit, if there is one."""
    found = await connection.execute(CANDIDATES, {"queues": [queue.name for queue in queues], "limit": limit})
    result: dict[str, list[Loaded]] = {queue.name: [] for queue in queues}
    for row in found:
        loaded = _loaded(row[:-1], row[-1])
        result[loaded.job.queue].append(loaded)
    return result


# --- queues and projects ---------------------------------------------------------------------------------------------


async def quotas(connection: AsyncConnection, names: Iterable[str]) -> dict[str, int]:
    """The quotas of those among `names` that exist, in GPUs; locked against a change until the end."""
    statement = sa.select(QUEUES.c.name, QUEUES.c.gpu_quota).where(any_of(QUEUES.c.name, sorted(set(names))))
    found = await connection.execute(statement.with_for_update(read=True))
    return {row.name: row.gpu_quota for row in found}


async def existing_projects(connection: AsyncConnection, names: Iterable[str]) -> set[str]:
    statement = sa.select(PROJECTS.c.name).where(any_of(PROJECTS.c.name, sorted(set(names))))
    return set((await connection.execute(statement)).scalars())


async def put_project(connection: AsyncConnection, name: str) -> bool:
    """Make the project unless it exists; False when it does."""
    statement = insert(PROJECTS).values(name=name).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1


async def create_queue(connection: AsyncConnection, name: str, gpu_quota: int) -> bool:
    """Make the queue unless it exists; False when it does."""
    statement = insert(QUEUES).values(name=name, gpu_quota=gpu_quota, used_gpus=0, attention=True)
    return (await connection.execute(statement.on_conflict_do_nothing())).rowcount == 1


_RESIZED = sa.text(
    "UPDATE admission.jobs SET held = NULL, reason = NULL, waiting = true, untold = true "
    "WHERE queue = :name AND held = 'quota_too_small' AND total_gpus <= :quota"
)
_OUTGROWN = sa.text(
    "UPDATE admission.jobs SET reason = NULL, untold = true WHERE queue = :name AND waiting AND total_gpus > :quota"
)


async def resize_queue(connection: AsyncConnection, name: str, gpu_quota: int) -> bool:
    """Change the quota of a queue; False when it had that already.

    Jobs that the new quota is large enough, or too small, for are to be told anew why they wait.
    """
    statement = sa.update(QUEUES).where(QUEUES.c.name == name, QUEUES.c.gpu_quota != gpu_quota)
    done = await connection.execute(statement.values(gpu_quota=gpu_quota, attention=True))
    if done.rowcount == 0:
        return False
    await connection.execute(_RESIZED, {"name": name, "quota": gpu_quota})
    await connection.execute(_OUTGROWN, {"name": name, "quota": gpu_quota})
    return True


_STANDING = (
    "SELECT q.name, q.gpu_quota, q.used_gpus, "
    "count(j.job_id) FILTER (WHERE j.state IN ('queued', 'admitted')) AS queued_jobs, "
    "count(j.job_id) FILTER (WHERE j.state NOT IN ('queued', 'admitted')) AS running_jobs "
    "FROM admission.queues q LEFT JOIN admission.jobs j ON j.queue = q.name AND j.ended_at IS NULL "
)
_ALL_STANDING = sa.text(_STANDING + "GROUP BY q.name ORDER BY q.name")
_ONE_STANDING = sa.text(_STANDING + "WHERE q.name = :name GROUP BY q.name")


async def queue_standing(connection: AsyncConnection, name: str | None = None) -> list[dict[str, Any]]:
    """Queues as the API shows them. Running are all that have begun and not ended: starting, cancelling, lost too."""
    if name is None:
        found = await connection.execute(_ALL_STANDING)
    else:
        found = await connection.execute(_ONE_STANDING, {"name": name})
    return [dict(row) for row in found.mappings()]


async def project_names(connection: AsyncConnection) -> list[str]:
    return list((await connection.execute(sa.select(PROJECTS.c.name).order_by(PROJECTS.c.name))).scalars())


# --- the fleet -------------------------------------------------------------------------------------------------------


async def nodes_by_name(connection: AsyncConnection, names: Iterable[str]) -> dict[str, Any]:
    statement = sa.select(NODES).where(any_of(NODES.c.name, sorted(set(names)))).order_by(NODES.c.name)
    return {row.name: row for row in await connection.execute(statement.with_for_update())}


async def save_nodes(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    await bulk_insert(connection, NODES, rows, update=["hardware", "schedulable", "log_offset"])


# --- what must hold --------------------------------------------------------------------------------------------------

CHECK_USAGE = (
    "SELECT q.name AS queue, q.used_gpus, coalesce(sum(j.claimed_gpus), 0)::int AS claimed_gpus "
    "FROM admission.queues q LEFT JOIN admission.jobs j ON j.queue = q.name AND j.ended_at IS NULL "
    "GROUP BY q.name HAVING q.used_gpus <> coalesce(sum(j.claimed_gpus), 0) ORDER BY q.name"
)
"""INV-4: the queues whose usage differs from the sum of the live claims in them. None, at every commit."""

CHECK_STATES = (
    "SELECT job_id, state, placed, held, reason, queued_at FROM admission.jobs WHERE ended_at IS NULL "
    "AND NOT (placed OR untold OR (state = 'queued' AND reason IS NOT NULL)) ORDER BY job_id"
)
"""INV-5: live jobs that nothing is out for, that state no reason, and that are not about to be told one."""

CHECK_ENDED = (
    "SELECT job_id, state, claimed_gpus FROM admission.jobs WHERE "
    "(ended_at IS NOT NULL) <> (state IN ('succeeded', 'failed', 'cancelled', 'expired')) "
    "OR (ended_at IS NOT NULL AND claimed_gpus <> 0) ORDER BY job_id"
)
"""Jobs whose state and end disagree, or that ended and still claim quota."""


async def check(connection: AsyncConnection) -> dict[str, list[dict[str, Any]]]:
    """Check id → the rows that contradict it, for the audit; run it in one snapshot (`Store.reading`)."""
    checks = {"INV-4": CHECK_USAGE, "INV-5": CHECK_STATES, "ended": CHECK_ENDED}
    return {
        name: [dict(row) for row in (await connection.execute(sa.text(sql))).mappings()] for name, sql in checks.items()
    }
