"""An allocation as the journal holds it, in memory and as a row."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from yard_events.types import TaskWork

COLUMNS = (
    "allocation_id, command_seq, state, work, master_addr, master_port, emptied, ended_at, stop_reason,"
    " stop_grace_seconds, trace, correlation_id, started_at"
)
UPSERT = (
    f"INSERT INTO allocations ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"  # noqa: S608  a constant
    " command_seq = excluded.command_seq, state = excluded.state, work = coalesce(excluded.work, work),"
    " master_addr = excluded.master_addr, master_port = excluded.master_port, emptied = excluded.emptied,"
    " ended_at = excluded.ended_at, stop_reason = excluded.stop_reason,"
    " stop_grace_seconds = excluded.stop_grace_seconds, trace = excluded.trace,"
    " correlation_id = excluded.correlation_id, started_at = excluded.started_at"
)


@dataclass(frozen=True, slots=True)
class JournaledAllocation:
    """`state` is the caller's word. `ended_at` stays None until the task is over; then `emptied` is what is missing.
    `work` is None when all that was ever seen is a stop. `stop_reason` is why it was first asked to stop.
    `trace` is the context that its events continue, as W3C headers: its command's, later its start's;
    `correlation_id` the conversation they belong to."""

    allocation_id: str
    command_seq: int
    state: str
    work: TaskWork | None
    master_addr: str | None = None
    master_port: int | None = None
    emptied: bool = False
    ended_at: datetime | None = None
    stop_reason: str | None = None
    stop_grace_seconds: float | None = None
    trace: dict[str, str] | None = None
    correlation_id: str | None = None
    started_at: datetime | None = None

    @property
    def live(self) -> bool:
        return self.ended_at is None or not self.emptied


def row_of(allocation: JournaledAllocation, *, with_work: bool) -> tuple[Any, ...]:
    """The values for UPSERT. Without its work, which is large, the row keeps the work it has."""
    work = allocation.work if with_work else None
    return (
        allocation.allocation_id,
        allocation.command_seq,
        allocation.state,
        work.model_dump_json(exclude_none=True) if work is not None else None,
        allocation.master_addr,
        allocation.master_port,
        allocation.emptied,
        allocation.ended_at.timestamp() if allocation.ended_at is not None else None,
        allocation.stop_reason,
        allocation.stop_grace_seconds,
        json.dumps(allocation.trace) if allocation.trace is not None else None,
        allocation.correlation_id,
        allocation.started_at.timestamp() if allocation.started_at is not None else None,
    )


def allocation_of(row: tuple[Any, ...]) -> JournaledAllocation:
    allocation_id, command_seq, state, work, master_addr, master_port, emptied, ended_at, reason, grace, *rest = row
    trace, correlation_id, started_at = rest
    return JournaledAllocation(
        allocation_id,
        command_seq,
        state,
        # As in events: a newer agent may have written fields that this one does not know.
        TaskWork.model_validate_json(work, extra="ignore") if work is not None else None,
        master_addr,
        master_port,
        bool(emptied),
        datetime.fromtimestamp(ended_at, UTC) if ended_at is not None else None,
        reason,
        grace,
        json.loads(trace) if trace is not None else None,
        correlation_id,
        datetime.fromtimestamp(started_at, UTC) if started_at is not None else None,
    )
