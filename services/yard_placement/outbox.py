"""What a cycle decides, collected in order: decisions with strictly rising ledger times, and commands to nodes."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from yard_events.base import EventModel
from yard_events.types import PrepareTask, StartTask, StopTask
from yard_placement.ledger import Allocation, Attempt

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


@dataclass(slots=True)
class Outbox:
    """Events of one cycle, to be emitted in this order."""

    clock: LedgerClock
    now: datetime
    events: list[EventModel] = field(default_factory=list[EventModel])

    def decide(self, kind: type[EventModel], attempt: Attempt, **data: Any) -> datetime:
        """Record a decision about an attempt; returns its ledger time."""
        time = self.clock.tick()
        self.events.append(
            kind.model_validate(
                {
                    "cluster": attempt.cluster,
                    "pool": attempt.pool,
                    "attempt_id": attempt.attempt_id,
                    "job_id": attempt.job_id,
                    "project_id": attempt.project_id,
                    "attempt": attempt.attempt,
                    "ledger_time": time,
                    **data,
                }
            )
        )
        return time

    def command(self, allocation: Allocation, kind: str, payload: dict[str, Any]) -> None:
        """Send the next command of an allocation, and remember it so that it can be sent again."""
        allocation.command_seq += 1
        allocation.command_type = kind
        allocation.command = payload
        allocation.commanded_at = self.now
        self.events.append(command_event(allocation))


_COMMANDS: dict[str, type[EventModel]] = {PREPARE: PrepareTask, START: StartTask, STOP: StopTask}


def command_event(allocation: Allocation) -> EventModel:
    """The allocation's last command as an event: the same again when it is sent again."""
    return _COMMANDS[allocation.command_type].model_validate(
        {
            "node": allocation.node,
            "epoch": allocation.epoch,
            "allocation_id": allocation.allocation_id,
            "command_seq": allocation.command_seq,
            **allocation.command,
        }
    )
