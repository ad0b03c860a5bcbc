"""What a cycle decides, collected in order: decisions with strictly rising ledger times, and commands to nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from yard_events.base import EventModel
from yard_events.envelope import Envelope
from yard_events.types import PrepareTask, StartTask, StopTask
from yard_obs.catalogue import ATTEMPT, JOB_ID
from yard_obs.tracing import TraceHeaders
from yard_placement.ledger import Allocation, Attempt, Waiting
from yard_placement.work import task_work
from yard_store.unit_of_work import UnitOfWork

PREPARE = "prepare"
START = "start"
STOP = "stop"


class LedgerClock:
    """The pool's ledger time within one cycle: every tick is later than the one before."""

    def __init__(self, first: datetime) -> None:
        self.last = first

    def tick(self) -> datetime:
        self.last += timedelta(microseconds=1)
        return self.last


@dataclass(frozen=True, slots=True)
class Said:
    """An event about an attempt, with the trace and the conversation that it continues."""

    event: EventModel
    trace: TraceHeaders | None
    correlation_id: str | None
    about: Mapping[str, str | int]

    def emit(self, uow: UnitOfWork, cause: Envelope | None = None) -> None:
        uow.emit(self.event, cause, self.trace, self.correlation_id, self.about)


def said_of(attempt: Attempt | Waiting, event: EventModel, trace: TraceHeaders | None = None) -> Said:
    """In the trace of the request to place the attempt, unless another is given."""
    about: dict[str, str | int] = {JOB_ID: attempt.job_id, ATTEMPT: attempt.attempt}
    return Said(event, trace or attempt.trace, attempt.correlation_id, about)


@dataclass(slots=True)
class Outbox:
    """Events of one cycle, to be emitted in this order, and the allocations that were sent a command."""

    clock: LedgerClock
    now: datetime
    events: list[Said] = field(default_factory=list[Said])
    commanded: list[Allocation] = field(default_factory=list[Allocation])

    def decide(self, kind: type[EventModel], attempt: Attempt | Waiting, **data: Any) -> datetime:
        """Record a decision about an attempt; returns its ledger time."""
        time = self.clock.tick()
        cluster, _, pool = attempt.pool_key.partition("/")
        event = kind(
            cluster=cluster,
            pool=pool,
            attempt_id=attempt.attempt_id,
            job_id=attempt.job_id,
            project_id=attempt.project_id,
            attempt=attempt.attempt,
            ledger_time=time,
            **data,
        )
        self.events.append(said_of(attempt, event))
        return time

    def command(self, attempt: Attempt, allocation: Allocation, kind: str, **payload: Any) -> None:
        """Send the next command of an allocation, and remember it so that it can be sent again."""
        allocation.command_seq += 1
        allocation.command_type = kind
        allocation.command = payload
        allocation.commanded_at = self.now
        self.events.append(command_of(attempt, allocation))
        self.commanded.append(allocation)


def command_of(attempt: Attempt, allocation: Allocation) -> Said:
    """The allocation's last command: the same again when it is sent again. A stop is in the trace of who wants it."""
    trace = attempt.stop_trace if allocation.command_type == STOP else None
    return said_of(attempt, _command_event(attempt, allocation), trace)


def _command_event(attempt: Attempt, allocation: Allocation) -> EventModel:
    header: dict[str, Any] = {
        "node": allocation.node,
        "epoch": allocation.epoch,
        "allocation_id": allocation.allocation_id,
        "command_seq": allocation.command_seq,
    }
    if allocation.command_type == STOP:
        return StopTask(**header, **allocation.command)
    kind = PrepareTask if allocation.command_type == PREPARE else StartTask
    return kind(**header, **allocation.command, work=task_work(attempt, allocation))
