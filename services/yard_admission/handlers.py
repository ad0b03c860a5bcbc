"""Handlers fold requests, decisions and the fleet into jobs and mark the root dirty; whom to admit is the cycle's."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from yard_admission import repository
from yard_admission.fleet import fold
from yard_admission.job import Held, Job
from yard_admission.lifecycle import DECISIONS, apply, cancel
from yard_admission.outbox import RECHECK, SCOPE, Outbox
from yard_admission.repository import Loaded
from yard_admission.settings import AdmissionSettings
from yard_bus.consumer import Received
from yard_domain.reasons import Reason
from yard_domain.states import JobState
from yard_events.envelope import Envelope
from yard_events.types import CancelJob, InventoryNode, JobFailed, JobQueued, SubmitJob
from yard_obs.tracing import carried_trace
from yard_store.unit_of_work import UnitOfWork


class AdmissionHandlers:
    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings

    async def requests(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """What people asked for: submissions and cancellations, in the order of the topic."""
        asked = [(r.envelope, data) for r in batch if isinstance(data := r.data, SubmitJob | CancelJob)]
        known = await repository.jobs_by_id(uow.connection, [data.job_id for _, data in asked])
        unknown = [data for _, data in asked if isinstance(data, SubmitJob) and data.job_id not in known]
        quotas: dict[str, int] = {}
        projects: set[str] = set()
        if unknown:
            quotas = await repository.quotas(uow.connection, [data.spec.queue for data in unknown])
            projects = await repository.existing_projects(uow.connection, [data.project_id for data in unknown])
        out = Outbox(self._settings, uow.now)
        new: dict[str, tuple[Job, dict[str, Any]]] = {}
        changed: dict[str, Loaded] = {}
        for out.cause, data in asked:
            if isinstance(data, SubmitJob):
                if data.job_id not in known and data.job_id not in new:
                    job = _submitted(data, out.cause, uow.now)
                    if job.trace is None:
                        out.begin_attempt(job)  # nobody began a trace for it, so it has one of its own
                    new[job.job_id] = (job, _work(data))
                    _receive(job, data, quotas, projects, out)
            elif data.job_id in new:
                cancel(new[data.job_id][0], out)
            elif data.job_id in known and cancel(known[data.job_id].job, out):
                changed[data.job_id] = known[data.job_id]
        await repository.insert_jobs(uow.connection, list(new.values()))
        await repository.save_jobs(uow.connection, list(changed.values()))
        if any(job.untold for job, _ in new.values()):
            out.plan_notice()
        out.flush(uow)
        if new or changed:
            uow.mark_dirty(SCOPE)

    async def decisions(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """What placement decided and saw, in ledger order."""
        decided = [(r.envelope, data) for r in batch if isinstance(data := r.data, DECISIONS)]
        known = await repository.jobs_by_id(uow.connection, [data.job_id for _, data in decided])
        withdrawn_before = {loaded.job.attempt_id for loaded in known.values() if loaded.job.withdrawn}
        out = Outbox(self._settings, uow.now)
        changed: dict[str, Loaded] = {}
        for out.cause, decision in decided:
            loaded = known.get(decision.job_id)
            if loaded is not None and apply(loaded.job, decision, out):
                changed[loaded.job.job_id] = loaded
        out.cause = None
        # Only now, at the end: a grant later in the batch makes a withdrawal moot.
        for loaded in changed.values():
            if loaded.job.withdrawn and loaded.job.attempt_id not in withdrawn_before:
                self._withdraw(loaded.job, out)
        await repository.save_jobs(uow.connection, list(changed.values()))
        out.flush(uow)
        if any(loaded.job.claimed_gpus == 0 for loaded in changed.values()):
            uow.mark_dirty(SCOPE)

    def _withdraw(self, job: Job, out: Outbox) -> None:
        """It holds no quota while it cannot be placed. The recheck covers a verdict that was old when it came."""
        settings = self._settings
        out.withdraw(job)
        delay = min(settings.recheck_seconds * 4.0 ** min(job.place_no - 1, 10), settings.recheck_limit_seconds)
        out.set_timer(RECHECK, job.run_key(), out.now + timedelta(seconds=delay))

    async def inventory(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """The fleet: when it may hold more than before, jobs that no node could hold become candidates again."""
        states = [(r.record.offset, data) for r in batch if isinstance(data := r.data, InventoryNode)]
        if not states:
            return
        rows, better = fold(states, await repository.nodes_by_name(uow.connection, [node.node for _, node in states]))
        await repository.save_nodes(uow.connection, rows)
        if better:
            await repository.release_hopeless(uow.connection)
            uow.mark_dirty(SCOPE)


def _submitted(data: SubmitJob, envelope: Envelope, now: datetime) -> Job:
    spec = data.spec
    return Job(
        job_id=data.job_id,
        project_id=data.project_id,
        queue=spec.queue,
        name=spec.name,
        priority=spec.priority,
        submitted_at=data.submitted_at,
        total_gpus=spec.tasks.count * spec.tasks.gpus,
        max_attempts=spec.retry.max_attempts,
        max_run_seconds=spec.limits.max_run_time,
        state=JobState.QUEUED,
        queued_at=now,
        trace=carried_trace(envelope.extra),
        correlation_id=envelope.correlation_id or envelope.id,
    )


def _work(data: SubmitJob) -> dict[str, Any]:
    """What placement needs to know of a job beside its name and rank."""
    return {
        "tasks": data.spec.tasks.model_dump(mode="json", exclude_none=True),
        "run": data.spec.run.model_dump(mode="json", exclude_none=True),
    }


def _receive(job: Job, data: SubmitJob, quotas: dict[str, int], projects: set[str], out: Outbox) -> None:
    """State that the job is queued, or why it cannot be: its queue or project is gone since the API accepted it."""
    missing = [
        *([f"queue {job.queue}"] if job.queue not in quotas else []),
        *([f"project {job.project_id}"] if job.project_id not in projects else []),
    ]
    if missing:
        job.state, job.reason, job.ended_at = JobState.FAILED, Reason.INVALID_REQUEST.value, out.now
        out.tell(JobFailed, job, detail=f"there is no {' and no '.join(missing)}")
        return
    if job.total_gpus > quotas[job.queue]:
        job.held, job.reason = Held.QUOTA_TOO_SMALL, Reason.QUOTA_TOO_SMALL.value
    out.tell(JobQueued, job, submitted_by=data.submitted_by, submitted_at=data.submitted_at)
