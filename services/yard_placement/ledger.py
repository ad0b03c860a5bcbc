"""Working copies of the ledger's rows: what a handler or a cycle loads, changes and writes back in bulk."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from yard_domain.states import AllocationState, AttemptState


@dataclass(slots=True, eq=False)
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
    billed_since: datetime
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

    @property
    def lost(self) -> bool:
        """Its node is silent and its end is unknown."""
        return self.lost_since is not None and self.outcome is None

    def exit(self, outcome: str, reason: str) -> None:
        """Taken to have ended; an end that its node reported stands."""
        if self.outcome is None:
            self.outcome, self.reason = outcome, reason
            self.state = AllocationState.RELEASING


@dataclass(slots=True, eq=False)
class Attempt:
    """See `tables.AttemptRow`; the same fields, with the attempt's allocations by task rank.

    `trace` and `correlation_id` are those of the request to place it, `stop_trace` that of the request to stop it: what
    the cycle decides later goes on in them.
    """

    attempt_id: str
    job_id: str
    project_id: str
    attempt: int
    queue: str
    name: str
    pool_key: str
    priority: int
    submitted_at: datetime
    pending_since: datetime
    spec: dict[str, Any]
    state: str = AttemptState.PENDING
    attention: bool = False
    trace: dict[str, str] | None = None
    correlation_id: str | None = None
    reason: str | None = None
    stop_reason: str | None = None
    stop_grace_seconds: float | None = None
    stop_sent: bool = False
    withdrawn: bool = False
    started_sent: bool = False
    lost_since: datetime | None = None
    ended_at: datetime | None = None
    stop_trace: dict[str, str] | None = None
    allocations: list[Allocation] = field(default_factory=list[Allocation])

    @property
    def gang(self) -> bool:
        return len(self.allocations) > 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a look at the pending set needs of an attempt: not what it runs, which may be large."""

    attempt_id: str
    job_id: str
    project_id: str
    attempt: int
    pool_key: str
    pending_since: datetime
    reason: str | None
    tasks: dict[str, Any]
    trace: dict[str, str] | None = None
    correlation_id: str | None = None


ALLOCATION_FIELDS = tuple(f.name for f in fields(Allocation))
ATTEMPT_FIELDS = tuple(f.name for f in fields(Attempt) if f.name != "allocations")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the lifecycle needs to know of a node. `boot_id` is inventory's, `epoch` the agent's: they may differ for a
    moment, for they come on two topics."""

    state: str | None
    epoch: str | None
    agent_url: str
    last_contact: datetime | None
    boot_id: str | None = None

    def current(self, epoch: str) -> bool:
        """Whether nothing known speaks against this epoch."""
        return self.epoch in (None, epoch) and self.boot_id in (None, boot_of(epoch))


def boot_of(epoch: str) -> str:
    """The boot id in an epoch, which is boot id and journal id in one."""
    return epoch.rpartition("/")[0]
