"""The life of a job as a function of what placement says of its attempt: no I/O, so each path can be tested as a table.

    queued → admitted → starting → running → succeeded | failed | cancelled | expired
       ↑_________|__________|_________|  blocked, or the attempt ended and another one is due
    any that is out at placement → cancelling → cancelled      starting, running, cancelling → lost → back, or ended

A decision counts when it is about the attempt that is out, later in ledger time than the last one that counted, and a
legal transition; everything else was seen before (INV-8) or is about an attempt that is over.
"""

from datetime import timedelta

from yard_admission.job import Held, Job
from yard_admission.outbox import MAX_RUN_TIME, Outbox
from yard_domain.reasons import Reason
from yard_domain.states import JobState, Outcome, may_become
from yard_events.types import (
    AttemptBlocked,
    AttemptExited,
    AttemptGranted,
    AttemptLost,
    AttemptRecovered,
    AttemptStarted,
    JobCancelled,
    JobCancelling,
    JobEnded,
    JobExpired,
    JobFailed,
    JobLost,
    JobQueued,
    JobRunning,
    JobStarting,
    JobSucceeded,
)

Decision = AttemptGranted | AttemptBlocked | AttemptStarted | AttemptExited | AttemptLost | AttemptRecovered
DECISIONS = (AttemptGranted, AttemptBlocked, AttemptStarted, AttemptExited, AttemptLost, AttemptRecovered)


def apply(job: Job, decision: Decision, out: Outbox) -> bool:
    """Fold one decision into the job; False when it changes nothing."""
    if not job.placed or decision.attempt_id != job.attempt_id:
        return False
    if job.decided_at is not None and decision.ledger_time <= job.decided_at:
        return False
    job.decided_at = decision.ledger_time
    if isinstance(decision, AttemptGranted):
        _granted(job, decision, out)
    elif isinstance(decision, AttemptBlocked):
        _blocked(job, decision, out)
    elif isinstance(decision, AttemptStarted):
        _started(job, decision, out)
    elif isinstance(decision, AttemptLost):
        _lost(job, decision, out)
    elif isinstance(decision, AttemptRecovered):
        _recovered(job, decision, out)
    else:
        _exited(job, decision, out)
    return True


def _granted(job: Job, decision: AttemptGranted, out: Outbox) -> None:
    """It may come after its claim was given back, when the withdrawal came too late: then the claim is taken again."""
    job.claim()
    job.held = None
    job.places = [
        {
            "task_rank": allocation.task_rank,
            "allocation_id": allocation.allocation_id,
            "node": allocation.node,
            "device_uuids": [device.uuid for device in allocation.devices],
            "agent_url": allocation.agent_url,
        }
        for allocation in decision.allocations
    ]
    if may_become(job.state, JobState.STARTING):
        job.state, job.reason = JobState.STARTING, None
        out.tell(JobStarting, job, decision.ledger_time, tasks=job.places)


def _blocked(job: Job, decision: AttemptBlocked, out: Outbox) -> None:
    if job.state not in (JobState.ADMITTED, JobState.QUEUED):
        return
    job.state, job.reason = JobState.QUEUED, decision.reason
    out.tell(JobQueued, job, decision.ledger_time, detail=decision.detail)
    job.held = Held.HOPELESS if decision.hopeless else None
    if decision.hopeless:
        job.give_back()


def _started(job: Job, decision: AttemptStarted, out: Outbox) -> None:
    job.started = True
    if job.state is JobState.STARTING:
        job.state = JobState.RUNNING
        out.tell(JobRunning, job, decision.ledger_time)
    if job.state is not JobState.LOST:
        job.run_since = decision.ledger_time
        _limit_run_time(job, out)


def _limit_run_time(job: Job, out: Outbox) -> None:
    if job.max_run_seconds is not None and job.stop_cause is None and job.run_since is not None:
        left = max(job.max_run_seconds - job.run_used_seconds, 0.0)
        out.set_timer(MAX_RUN_TIME, job.run_key(), job.run_since + timedelta(seconds=left))


def _stop_counting(job: Job, out: Outbox) -> None:
    job.run_since = None
    if job.max_run_seconds is not None:
        out.clear_timer(MAX_RUN_TIME, job.run_key())


def _lost(job: Job, decision: AttemptLost, out: Outbox) -> None:
    """A gang may lose one node after another; it is lost from the first to the return of the last."""
    lost = {*(job.lost_allocations or ()), *decision.allocation_ids}
    if job.state is not JobState.LOST:
        if not may_become(job.state, JobState.LOST):
            return
        job.state = JobState.LOST
        job.give_back()
        if job.run_since is not None:
            job.run_used_seconds += max((decision.last_contact - job.run_since).total_seconds(), 0.0)
        _stop_counting(job, out)
        out.tell(JobLost, job, decision.ledger_time, reason=Reason.NODE_LOST.value)
    job.lost_allocations = sorted(lost)


def _recovered(job: Job, decision: AttemptRecovered, out: Outbox) -> None:
    """Its devices were never free, so the claim is taken again even if the quota has been used meanwhile."""
    if job.lost_allocations is None:
        return
    still = sorted({*job.lost_allocations} - {*decision.allocation_ids})
    job.lost_allocations = still or None
    if still:
        return
    job.claim()
    if job.started:
        job.run_since = decision.ledger_time
        _limit_run_time(job, out)
    if job.state is not JobState.LOST:
        return
    if job.stop_cause == Reason.CANCELLED:
        job.state = JobState.CANCELLING
        out.tell(JobCancelling, job, decision.ledger_time)
    elif job.started:
        job.state = JobState.RUNNING
        out.tell(JobRunning, job, decision.ledger_time)
    else:
        job.state = JobState.STARTING
        out.tell(JobStarting, job, decision.ledger_time, tasks=job.places or [])


def _exited(job: Job, decision: AttemptExited, out: Outbox) -> None:
    if job.withdrawn and job.stop_cause is None:
        # Placement has forgotten an attempt that it had never granted: nothing of the job has happened.
        job.placed = False
        return
    kind, state = _end(job, decision)
    if not may_become(job.state, state):
        return
    _stop_counting(job, out)
    job.placed = False
    job.give_back()
    job.lost_allocations = job.places = None
    job.state = state
    if kind is None:
        _retry(job, decision, out)
        return
    job.reason = job.stop_cause if state in (JobState.CANCELLED, JobState.EXPIRED) else decision.reason
    job.ended_at = out.now
    out.tell(
        kind,
        job,
        decision.ledger_time,
        detail=decision.detail,
        exit_code=decision.exit_code,
        tasks=decision.tasks,
    )


def _end(job: Job, decision: AttemptExited) -> tuple[type[JobEnded] | None, JobState]:
    """How the job ends with this attempt; no event type when another attempt is due."""
    if job.stop_cause == Reason.CANCELLED:
        return JobCancelled, JobState.CANCELLED
    if decision.outcome == Outcome.SUCCEEDED:
        return JobSucceeded, JobState.SUCCEEDED
    if job.stop_cause is not None:
        return JobExpired, JobState.EXPIRED
    if job.attempt < job.max_attempts:
        return None, JobState.QUEUED
    return JobFailed, JobState.FAILED


def _retry(job: Job, decision: AttemptExited, out: Outbox) -> None:
    """Wait for the next attempt, at the place in the queue that the submission had."""
    code = f" {decision.exit_code}" if decision.exit_code is not None else ""
    detail = f"attempt {job.attempt} of {job.max_attempts} ended: {decision.reason}{code}"
    job.attempt += 1
    job.place_no = 0
    job.attempt_id = job.decided_at = None
    job.held = None
    job.started, job.run_used_seconds = False, 0.0
    job.queued_at = out.now
    job.reason = Reason.RETRY.value
    out.begin_attempt(job)
    out.tell(JobQueued, job, decision.ledger_time, trace=job.present_trace, detail=detail)


def cancel(job: Job, out: Outbox) -> bool:
    """What a person asked for: at once when nothing of the job is out at placement. False when it changes nothing."""
    if job.state.terminal or job.stop_cause == Reason.CANCELLED:
        return False
    job.stop_cause = Reason.CANCELLED.value
    if not job.placed:
        job.state, job.reason, job.held = JobState.CANCELLED, Reason.CANCELLED.value, None
        job.ended_at = out.now
        out.tell(JobCancelled, job)
        return True
    job.state, job.reason, job.held = JobState.CANCELLING, Reason.CANCELLED.value, None
    if job.max_run_seconds is not None:
        out.clear_timer(MAX_RUN_TIME, job.run_key())
    out.tell(JobCancelling, job)
    out.stop(job, Reason.CANCELLED)
    return True


def expire(job: Job, out: Outbox) -> bool:
    """Its run time is over: stop it, unless a stop is under way. False when it changes nothing."""
    if job.state is not JobState.RUNNING or job.stop_cause is not None:
        return False
    job.stop_cause = Reason.MAX_RUN_TIME.value
    out.stop(job, Reason.MAX_RUN_TIME)
    return True
