"""The state machines of jobs, attempts, allocations and nodes."""

from enum import StrEnum


class JobState(StrEnum):
    SUBMITTED = "submitted"
    QUEUED = "queued"
    ADMITTED = "admitted"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_JOB_STATES


TERMINAL_JOB_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})

_S = JobState
JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _S.SUBMITTED: frozenset({_S.QUEUED, _S.FAILED, _S.CANCELLED}),
    # queued -> queued: the stated reason changed. queued -> starting: granted after it was reported blocked.
    _S.QUEUED: frozenset({_S.QUEUED, _S.ADMITTED, _S.STARTING, _S.CANCELLING, _S.CANCELLED, _S.FAILED}),
    _S.ADMITTED: frozenset({_S.QUEUED, _S.STARTING, _S.CANCELLING, _S.CANCELLED, _S.FAILED}),
    # starting -> succeeded and -> expired: the start and the end of a short run may reach admission together.
    _S.STARTING: frozenset({_S.RUNNING, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLING, _S.LOST, _S.EXPIRED}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.QUEUED, _S.CANCELLING, _S.LOST, _S.EXPIRED}),
    _S.CANCELLING: frozenset({_S.CANCELLED, _S.LOST}),
    _S.LOST: frozenset(
        {_S.RUNNING, _S.STARTING, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLING, _S.CANCELLED, _S.EXPIRED}
    ),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.EXPIRED: frozenset(),
}


def may_become(old: JobState, new: JobState) -> bool:
    return new in JOB_TRANSITIONS[old]


class AttemptState(StrEnum):
    """An attempt in placement's ledger. `stopping` covers every cause; the cause is the attempt's stop reason."""

    PENDING = "pending"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    LOST = "lost"
    ENDED = "ended"


class AllocationState(StrEnum):
    """One per task of an attempt: granted -> held -> releasing -> released. All but `released` book their devices."""

    GRANTED = "granted"
    HELD = "held"
    RELEASING = "releasing"
    RELEASED = "released"


class NodeState(StrEnum):
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"


class Outcome(StrEnum):
    """How a task or an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
