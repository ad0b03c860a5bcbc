"""What a handler or the cycle decides, collected in order: facts for the world, commands to placement, timers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from yard_admission.job import Job
from yard_admission.settings import AdmissionSettings
from yard_events.base import EventModel
from yard_events.envelope import Envelope
from yard_events.types import JobFact, StopAttempt, WithdrawAttempt
from yard_store.unit_of_work import UnitOfWork

SCOPE = "root"
"""The one scope of admission's cycle: the named queues are siblings under one root."""

MAX_RUN_TIME = "max_run_time"
RECHECK = "recheck"
NOTICE = "notice"
PRUNE = "prune"

Fact = TypeVar("Fact", bound=JobFact)


@dataclass(slots=True)
class Outbox:
    """Events and timers of one unit of work, to be written in this order. `cause` is what is being handled."""

    settings: AdmissionSettings
    now: datetime
    cause: Envelope | None = None
    events: list[tuple[EventModel, Envelope | None]] = field(default_factory=list[tuple[EventModel, Envelope | None]])
    timers: dict[tuple[str, str], datetime | None] = field(default_factory=dict[tuple[str, str], datetime | None])

    def send(self, event: EventModel) -> None:
        self.events.append((event, self.cause))

    def tell(self, kind: type[Fact], job: Job, at: datetime | None = None, **data: Any) -> None:
        """State the job's present state to the world, with the reason it has unless another is given."""
        self.send(
            kind(
                job_id=job.job_id,
                project_id=job.project_id,
                queue=job.queue,
                name=job.name,
                state=job.state.value,
                attempt=job.attempt,
                at=at or self.now,
                **({"reason": job.reason} | data),
            )
        )

    def stop(self, job: Job, reason: str) -> None:
        assert job.attempt_id is not None
        self.send(
            StopAttempt(
                cluster=self.settings.cluster,
                pool=self.settings.pool,
                attempt_id=job.attempt_id,
                job_id=job.job_id,
                project_id=job.project_id,
                reason=reason,
                grace_seconds=self.settings.grace_seconds,
            )
        )

    def withdraw(self, job: Job) -> None:
        assert job.attempt_id is not None
        self.send(
            WithdrawAttempt(
                cluster=self.settings.cluster,
                pool=self.settings.pool,
                attempt_id=job.attempt_id,
                job_id=job.job_id,
                project_id=job.project_id,
            )
        )

    def set_timer(self, kind: str, key: str, due_at: datetime) -> None:
        self.timers[(kind, key)] = due_at

    def clear_timer(self, kind: str, key: str) -> None:
        self.timers[(kind, key)] = None

    def plan_notice(self) -> None:
        """When those who still wait are told why. One timer a second at most, and setting it again never moves it."""
        seconds = self.settings.notice_seconds
        due = int((self.now + timedelta(seconds=seconds)).timestamp()) + (1 if seconds else 0)
        self.set_timer(NOTICE, str(due), datetime.fromtimestamp(due, UTC))

    def flush(self, uow: UnitOfWork) -> None:
        """Hand everything over to the unit of work."""
        for event, cause in self.events:
            uow.emit(event, cause)
        for (kind, key), due_at in self.timers.items():
            if due_at is None:
                uow.clear_timer(SCOPE, kind, key)
            else:
                uow.set_timer(SCOPE, kind, key, due_at)
