"""Ten thousand waiting jobs must not make a cycle slower than its window."""

from datetime import timedelta

import sqlalchemy as sa

from support.admission import START, Desk
from yard_admission import repository
from yard_admission.job import Job
from yard_admission.repository import Queue
from yard_domain.states import JobState


def waiting_job(number: int) -> Job:
    return Job(
        job_id=f"job-{number:05}",
        project_id="default",
        queue="default",
        name="many",
        priority=number % 3,
        submitted_at=START + timedelta(seconds=number),
        total_gpus=1,
        max_attempts=1,
        max_run_seconds=None,
        state=JobState.QUEUED,
        queued_at=START,
        reason="quota",
    )


async def test_candidates_are_read_from_the_index_and_only_as_far_as_the_quota_reaches(desk: Desk) -> None:
    work = {"tasks": {}, "run": {"command": ["true"]}}
    async with desk.store.unit_of_work() as uow:
        await repository.insert_jobs(uow.connection, [(waiting_job(number), work) for number in range(10_000)])
        await uow.connection.execute(sa.text("ANALYZE admission.jobs"))
    async with desk.store.unit_of_work() as uow:
        found = await repository.candidates(uow.connection, [Queue("default", 4, 0)], limit=300)
        sql = str(repository.CANDIDATES).replace(":limit", "300").replace(":queues", "ARRAY['default']")
        plan = "\n".join(row[0] for row in await uow.connection.execute(sa.text(f"EXPLAIN {sql}")))
    assert [loaded.job.job_id for loaded in found["default"]] == [f"job-{number:05}" for number in (2, 5, 8, 11, 14)]
    assert "jobs_waiting" in plan
    assert "Seq Scan on jobs" not in plan


async def test_a_backlog_is_admitted_in_bounded_steps(desk: Desk) -> None:
    work = {"tasks": {}, "run": {"command": ["true"]}}
    async with desk.store.unit_of_work() as uow:
        await uow.connection.execute(sa.text("UPDATE admission.queues SET gpu_quota = 1000"))
        await repository.insert_jobs(uow.connection, [(waiting_job(number), work) for number in range(700)])
    admitted = [await desk.used()]
    desk.dirty = True
    while await desk.cycle_if_due():
        admitted.append(await desk.used())
    assert admitted[:4] == [0, 300, 600, 700]
