"""Working copy of a job's row: what a handler or the cycle loads, changes and writes back in bulk."""

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from yard_domain.states import JobState


class Held(StrEnum):
    """Why a queued job is no candidate for admission, though nothing of it is out at placement."""

    HOPELESS = "hopeless"
    """Placement said that no node could hold it; a change of the fleet or a recheck makes it a candidate again."""
    QUOTA_TOO_SMALL = "quota_too_small"
    """It is larger than its queue's whole quota; a higher quota makes it a candidate again."""


@dataclass(slots=True)
class Job:
    """One job. `attempt` counts from 1 and is the one it waits for, or that runs.

    `placed`: its attempt `attempt_id` was sent to placement and is not known to have ended, so at most one attempt of a
    job is ever out (INV-2). `decided_at`: ledger time of the last decision on it; what is not later was seen before.
    `run_since`, `run_used_seconds`: run time is counted in ledger time and stands still while the job is lost.
    `trace` is the submission's trace context and `attempt_trace` that of a later attempt, as W3C headers: what the
    cycle decides long after the request belongs to its trace still. `correlation_id`: the conversation of all its
    events.
    """

    job_id: str
    project_id: str
    queue: str
    name: str
    priority: int
    submitted_at: datetime
    total_gpus: int
    max_attempts: int
    max_run_seconds: float | None
    state: JobState
    queued_at: datetime
    reason: str | None = None
    held: Held | None = None
    attempt: int = 1
    place_no: int = 0
    attempt_id: str | None = None
    placed: bool = False
    claimed_gpus: int = 0
    stop_cause: str | None = None
    decided_at: datetime | None = None
    started: bool = False
    run_since: datetime | None = None
    run_used_seconds: float = 0.0
    places: list[dict[str, Any]] | None = None
    lost_allocations: list[str] | None = None
    ended_at: datetime | None = None
    trace: dict[str, str] | None = None
    correlation_id: str | None = None
    attempt_trace: dict[str, str] | None = None

    @property
    def present_trace(self) -> dict[str, str] | None:
        """The trace that its present attempt is in."""
        return self.attempt_trace or self.trace

    @property
    def waiting(self) -> bool:
        """A candidate for admission."""
        return self.state is JobState.QUEUED and not self.placed and self.held is None

    @property
    def untold(self) -> bool:
        """A candidate to whom no reason for waiting was stated yet."""
        return self.waiting and self.reason is None

    @property
    def withdrawn(self) -> bool:
        """Its claim was given back while its attempt is still out: placement was asked to forget the attempt, and until
        it confirms, the job must not be placed again."""
        return self.state is JobState.QUEUED and self.placed and self.claimed_gpus == 0

    def claim(self) -> None:
        self.claimed_gpus = self.total_gpus

    def give_back(self) -> None:
        self.claimed_gpus = 0

    def next_attempt_id(self) -> str:
        """Count one more placing; an id is sent to placement once and never again."""
        self.place_no += 1
        again = f".{self.place_no}" if self.place_no > 1 else ""
        return f"{self.job_id}-a{self.attempt}{again}"

    def run_key(self) -> str:
        """The key of timers that concern this very attempt."""
        return f"{self.job_id}|{self.attempt_id}"


JOB_FIELDS = tuple(f.name for f in fields(Job))
FIXED_FIELDS = frozenset(
    {
        "project_id",
        "queue",
        "name",
        "priority",
        "submitted_at",
        "total_gpus",
        "max_attempts",
        "max_run_seconds",
        "trace",
        "correlation_id",
    }
)
MUTABLE_FIELDS = tuple(name for name in JOB_FIELDS if name not in FIXED_FIELDS)
