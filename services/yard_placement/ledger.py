"""Working copies of the ledger's rows: what a handler or a cycle loads, changes and writes back in bulk."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from yard_domain.states import AllocationState, AttemptState


@dataclass(slots=True)
class Allocation:
    """See `tables.AllocationRow`; the same fields."""

    allocation_id: str
    attempt_id: str
    job_id: str
    project_id: str
    task_rank: int
    node: str
    epoch: str
    device_uuids: list[str]
    cpus: float
    memory_bytes: int
    state: str
    command_seq: int
    command_type: str
    command: dict[str, Any]
    commanded_at: datetime
    granted_at: datetime
    ready: bool = False
    master_addr: str | None = None
    master_port: int | None = None
    started: bool = False
    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None
    emptied: bool = False
    lost_since: datetime | None = None
    lost_micros: int = 0
    released_at: datetime | None = None

    @property
    def exited(self) -> bool:
        return self.outcome is not None

    @property
    def live(self) -> bool:
        return self.released_at is None

    def exit(
        self,
        outcome: str,
        reason: str,
        exit_code: int | None = None,
        signal: int | None = None,
        detail: str | None = None,
    ) -> None:
        """The first end counts; a task ends once."""
        if self.outcome is None:
            self.outcome, self.reason = outcome, reason
            self.exit_code, self.signal, self.detail = exit_code, signal, detail
            self.state = AllocationState.RELEASING


@dataclass(slots=True)
class Attempt:
    """See `tables.AttemptRow`; the same fields, with the attempt's allocations by task rank."""

    attempt_id: str
    job_id: str
    project_id: str
    attempt: int
    queue: str
    name: str
    pool_key: str
    priority: int
    submitted_at: datetime
    spec: dict[str, Any]
    state: str = AttemptState.PENDING
    attention: bool = False
    reason: str | None = None
    stop_reason: str | None = None
    stop_grace_seconds: float | None = None
    stop_sent: bool = False
    withdrawn: bool = False
    started_sent: bool = False
    lost_since: datetime | None = None
    ended_at: datetime | None = None
    allocations: list[Allocation] = field(default_factory=list[Allocation])

    @property
    def cluster(self) -> str:
        return self.pool_key.partition("/")[0]

    @property
    def pool(self) -> str:
        return self.pool_key.partition("/")[2]

    @property
    def over(self) -> bool:
        """Ended, and every device handed back."""
        return self.state == AttemptState.ENDED and all(not allocation.live for allocation in self.allocations)


ALLOCATION_FIELDS = tuple(f.name for f in fields(Allocation))
ATTEMPT_FIELDS = tuple(f.name for f in fields(Attempt) if f.name != "allocations")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the lifecycle needs to know of a node."""

    state: str | None
    epoch: str | None
    agent_url: str
    last_contact: datetime | None
