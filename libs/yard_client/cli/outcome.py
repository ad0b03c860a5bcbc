"""What a job's state means: for the exit code, and in one sentence."""

from yard_client.models import Job
from yard_domain.states import TERMINAL_JOB_STATES

_ENDED = frozenset(state.value for state in TERMINAL_JOB_STATES)


def has_ended(job: Job) -> bool:
    return job["state"] in _ENDED


def exit_status(job: Job) -> int:
    """The job's own exit code; 128 + n when signal n killed it; 1 for every other end that is no success."""
    if job["state"] == "succeeded":
        return 0
    if job["state"] == "failed":
        code = job["exit_code"]
        if code is None and job["reason"] == "exit_code":
            code = next((end["exit_code"] for end in job["task_ends"] if end["exit_code"]), None)
        if code is not None and 0 < code < 256:
            return code
        if job["reason"] == "signal":
            signal = next((end["signal"] for end in job["task_ends"] if end["signal"]), None)
            if signal is not None:
                return 128 + signal
    return 1


def sentence(job: Job) -> str:
    """State, reason and figures: `failed: The command exited. exit code 3`."""
    parts = [part for part in (job["reason_text"] or job["reason"], job["detail"]) if part]
    if job["state"] == "failed" and job["exit_code"] and not job["detail"]:
        parts.append(f"Exit code {job['exit_code']}.")
    return f"{job['state']}: {' '.join(parts)}" if parts else job["state"]


def parked_sentence(job: Job) -> str | None:
    """What holds the job up that no waiting mends; None when nothing does."""
    parked = job.get("parked")
    if parked is None:
        return None
    more = f" (and {parked['records'] - 1} more)" if parked["records"] > 1 else ""
    why = parked["error"] or "an earlier event of its key waits there"
    return f"{parked['service']} cannot handle an event about it: {why}{more}"


def parked_record(job: Job) -> str | None:
    """The command that shows the event."""
    parked = job.get("parked")
    if parked is None:
        return None
    return f"yard dlq show {parked['service']} {parked['topic']}/{parked['partition']}@{parked['offset']}"
