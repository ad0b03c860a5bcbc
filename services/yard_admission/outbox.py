"""What a handler or the cycle decides, collected in order: facts for the world, commands to placement, timers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from yard_admission.job import Job
from yard_admission.settings import AdmissionSettings
from yard_events.base import EventModel
from yard_events.envelope import Envelope
from yard_events.types import JobFact, StopAttempt, WithdrawAttempt
from yard_obs.catalogue import ATTEMPT, JOB_ID
from yard_obs.tracing import TraceHeaders, carried_trace, current_trace, link_to, span
from yard_store.unit_of_work import UnitOfWork

SCOPE = "root"
"""The one scope of admission's cycle: the named queues are siblings under one root."""

MAX_RUN_TIME = "max_run_time"
RECHECK = "recheck"
NOTICE = "notice"
PRUNE = "prune"

Fact = TypeVar("Fact", bound=JobFact)


@dataclass(frozen=True, slots=True)
class Said:
    """An event with what led to it, and what it continues: a trace, if there is one, and the job's conversation."""

    event: EventModel
    cause: Envelope | None
    trace: TraceHeaders | None
    correlation_id: str | None
    attempt: int


@dataclass(slots=True)
class Outbox:
    """Events and timers of one unit of work, to be written in this order. `cause` is what is being handled."""

    settings: AdmissionSettings
    now: datetime
    cause: Envelope | None = None
    events: list[Said] = field(default_factory=list[Said])
    timers: dict[tuple[str, str], datetime | None] = field(default_factory=dict[tuple[str, str], datetime | None])

    def send(self, event: EventModel, job: Job, trace: TraceHeaders | None = None) -> None:
        """In the trace of what is being handled; else, in a cycle, in the one that the job's present attempt is in."""
        handled = carried_trace(self.cause.extra) if self.cause is not None else None
        followed = trace or handled or job.present_trace
        self.events.append(Said(event, self.cause, followed, job.correlation_id, job.attempt))

    def begin_attempt(self, job: Job) -> None:
        """A later attempt is a trace of its own, linked to the submission and to what ended the one before."""
        origins = (job.trace, self.cause.extra if self.cause is not None else None)
        links = tuple(link for origin in origins if origin and (link := link_to(origin)) is not None)
        attributes: dict[str, str | int] = {JOB_ID: job.job_id, ATTEMPT: job.attempt}
        with span(f"attempt {job.attempt}", root=True, links=links, attributes=attributes):
            # Nothing records where no telemetry is configured: then the caller's own trace goes on.
            job.attempt_trace = current_trace() or None

    def tell(
        self,
        kind: type[Fact],
        job: Job,
        at: datetime | None = None,
        *,
        trace: TraceHeaders | None = None,
        **data: Any,
    ) -> None:
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
            ),
            job,
            trace,
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
            ),
            job,
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
            ),
            job,
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
        for said in self.events:
            uow.emit(said.event, said.cause, said.trace, said.correlation_id, {ATTEMPT: said.attempt})
        for (kind, key), due_at in self.timers.items():
            if due_at is None:
                uow.clear_timer(SCOPE, kind, key)
            else:
                uow.set_timer(SCOPE, kind, key, due_at)
