"""The root's cycle: who of the waiting jobs is admitted. One unit of work under the scope's term, bounded per call."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from yard_admission import repository
from yard_admission.job import Held, Job
from yard_admission.lifecycle import expire
from yard_admission.outbox import MAX_RUN_TIME, NOTICE, PRUNE, RECHECK, SCOPE, Outbox
from yard_admission.repository import Loaded, Queue
from yard_admission.settings import AdmissionSettings
from yard_domain.reasons import Reason
from yard_domain.states import JobState
from yard_events.job_document import RunDocument, TasksDocument
from yard_events.types import JobAdmitted, JobQueued, PlaceAttempt
from yard_obs.catalogue import ADMISSION_WAIT, DECISIONS
from yard_obs.metrics import Metrics
from yard_obs.phases import CyclePhases
from yard_store.unit_of_work import Timer, UnitOfWork

_log = structlog.get_logger("yard.admission")

_TIMERS = 500
_PRUNE_EVERY = timedelta(hours=1)
_PRUNE_LIMIT = 1000


class AdmissionCycle:
    """Admits, queue by queue and in order, as long as the quota has room."""

    def __init__(self, settings: AdmissionSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._waits = metrics.histogram(ADMISSION_WAIT)
        self._decisions = metrics.counter(DECISIONS)

    async def __call__(self, uow: UnitOfWork, scope: str) -> bool:
        """One step; True when there is more to do at once."""
        out = Outbox(self._settings, uow.now)
        phases = CyclePhases(self._metrics, "admission")
        # 1. what time has made due
        due = await uow.take_due_timers(scope, _TIMERS)
        if due:
            await self._due(uow, due, out)
            phases.lap("timers")
        # 2. the queues that something happened to, each with its candidates up to the first that has no room
        queues = await repository.queues_wanting_attention(uow.connection, uow.now, self._settings.queues_per_cycle)
        more = False
        if queues:
            limit = max(self._settings.admissions_per_cycle // len(queues), 1)
            waiting = await repository.candidates(uow.connection, queues, limit)
            # 3. admit in order
            changed: list[Loaded] = []
            attention: dict[str, bool] = {}
            for queue in queues:
                attention[queue.name] = self._admit(queue, waiting[queue.name], limit, changed, out)
            # 4. claims and usage, in bulk
            await repository.save_jobs(uow.connection, changed, attention)
            more = any(attention.values()) or len(queues) == self._settings.queues_per_cycle
            phases.lap("admit")
            uow.after_commit(lambda: self._record_waits(changed, uow.now))
        # 5. whoever still waits, and has for a while, is told why, once
        if any(timer.kind == NOTICE for timer in due):
            await self._tell_waiting(uow, out, full_look=not more)
            phases.lap("explain")
        out.flush(uow)
        phases.lap("tell")
        uow.after_commit(lambda: self._record_decisions(out))
        return more or len(due) == _TIMERS

    def _record_waits(self, looked_at: Sequence[Loaded], now: datetime) -> None:
        for loaded in looked_at:
            if loaded.job.state is JobState.ADMITTED:
                self._waits.record((now - loaded.job.queued_at).total_seconds(), queue=loaded.job.queue)

    def _record_decisions(self, out: Outbox) -> None:
        for said in out.events:
            if isinstance(said.event, JobAdmitted):
                self._decisions.add(outcome="admitted", reason="none")
            elif isinstance(said.event, JobQueued):
                self._decisions.add(outcome="waits", reason=said.event.reason or "none")

    def _admit(self, queue: Queue, waiting: Sequence[Loaded], limit: int, changed: list[Loaded], out: Outbox) -> bool:
        """Admit while there is room; the first without keeps those behind it waiting. True when another look is due."""
        free = queue.gpu_quota - queue.used_gpus
        for loaded in waiting:
            job = loaded.job
            if job.total_gpus > queue.gpu_quota:
                _hold(job, out)
                changed.append(loaded)
            elif job.total_gpus <= free:
                free -= job.total_gpus
                self._place(loaded, out)
                changed.append(loaded)
            else:
                if self._tell_head(job, out):
                    changed.append(loaded)
                return False
        return len(waiting) == limit

    def _place(self, loaded: Loaded, out: Outbox) -> None:
        job, work = loaded.job, loaded.work
        assert work is not None
        job.claim()
        job.state, job.reason = JobState.ADMITTED, None
        job.placed, job.decided_at = True, None
        job.attempt_id = job.next_attempt_id()
        out.tell(JobAdmitted, job)
        out.send(
            PlaceAttempt(
                cluster=self._settings.cluster,
                pool=self._settings.pool,
                attempt_id=job.attempt_id,
                job_id=job.job_id,
                project_id=job.project_id,
                attempt=job.attempt,
                queue=job.queue,
                name=job.name,
                priority=job.priority,
                submitted_at=job.submitted_at,
                # Both were validated when they were submitted; doing it again would be a third of the cycle's time.
                tasks=TasksDocument.model_construct(**work["tasks"]),
                run=RunDocument.model_construct(**work["run"]),
                max_run_seconds=job.max_run_seconds,
            ),
            job,
        )

    def _tell_head(self, job: Job, out: Outbox) -> bool:
        """The first that has no room, unless it has just come and may soon find some."""
        young = job.queued_at > out.now - timedelta(seconds=self._settings.notice_seconds)
        if job.reason == Reason.QUOTA or (job.reason is None and young):
            return False
        _tell_quota(job, out)
        return True

    async def _tell_waiting(self, uow: UnitOfWork, out: Outbox, *, full_look: bool) -> None:
        limit = self._settings.notices_per_cycle
        before = uow.now - timedelta(seconds=self._settings.notice_seconds)
        untold = await repository.untold_jobs(uow.connection, before, limit)
        quotas = await repository.quotas(uow.connection, {loaded.job.queue for loaded in untold})
        for loaded in untold:
            if loaded.job.total_gpus > quotas[loaded.job.queue]:
                _hold(loaded.job, out)
            else:
                _tell_quota(loaded.job, out)
        await repository.save_jobs(uow.connection, untold, {})
        if len(untold) == limit or not full_look:
            out.set_timer(NOTICE, "next", uow.now)

    async def _due(self, uow: UnitOfWork, due: Sequence[Timer], out: Outbox) -> None:
        keys = {timer.key: timer.kind for timer in due if timer.kind in (MAX_RUN_TIME, RECHECK)}
        known = await repository.jobs_by_id(uow.connection, [key.partition("|")[0] for key in keys])
        changed: list[Loaded] = []
        for key, kind in keys.items():
            loaded = known.get(key.partition("|")[0])
            if loaded is None or loaded.job.run_key() != key:
                continue
            if expire(loaded.job, out) if kind == MAX_RUN_TIME else _recheck(loaded.job):
                changed.append(loaded)
        await repository.save_jobs(uow.connection, changed)
        if any(timer.kind == PRUNE for timer in due):
            before = uow.now - timedelta(seconds=self._settings.keep_ended_seconds)
            gone = await repository.prune(uow.connection, before, _PRUNE_LIMIT)
            _log.info("forgot ended jobs", jobs=gone)
            out.set_timer(PRUNE, "", uow.now if gone == _PRUNE_LIMIT else uow.now + _PRUNE_EVERY)


async def plan_pruning(uow: UnitOfWork) -> None:
    """At every activation, so that an installation never lacks the timer."""
    uow.set_timer(SCOPE, PRUNE, "", uow.now + timedelta(minutes=5))


def _hold(job: Job, out: Outbox) -> None:
    """Larger than the whole quota: it waits for a higher one, and does not keep others waiting."""
    job.held, job.reason = Held.QUOTA_TOO_SMALL, Reason.QUOTA_TOO_SMALL.value
    out.tell(JobQueued, job)


def _tell_quota(job: Job, out: Outbox) -> None:
    job.reason = Reason.QUOTA.value
    out.tell(JobQueued, job)


def _recheck(job: Job) -> bool:
    if job.held is not Held.HOPELESS:
        return False
    job.held = None
    return True
