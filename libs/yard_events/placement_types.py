"""Events of placement: admission's commands to a pool, and the ledger's facts. Key: cluster/pool."""

from typing import ClassVar

from pydantic import AwareDatetime

from yard_domain.names import pool_key
from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.job_document import RunDocument, TasksDocument
from yard_events.job_types import TaskEnd
from yard_events.part import Part

# --- yard.placement.requests.v1: admission's commands, key = cluster/pool --------------------------------------------


class _PoolCommand(EventModel):
    TOPIC: ClassVar[str] = topics.PLACEMENT_REQUESTS
    cluster: str
    pool: str
    attempt_id: str
    job_id: str
    project_id: str

    def key(self) -> str:
        return pool_key(self.cluster, self.pool)

    def subject(self) -> str:
        return self.attempt_id


class PlaceAttempt(_PoolCommand):
    """Place this attempt. Order in the pool's pending set: priority (high first), submitted_at, job_id."""

    TYPE: ClassVar[str] = "yard.placement.place.v1"
    attempt: int
    queue: str
    name: str
    priority: int
    submitted_at: AwareDatetime
    tasks: TasksDocument
    run: RunDocument
    max_run_seconds: float | None = None


class StopAttempt(_PoolCommand):
    """Stop it wherever it is: a pending one ends at once, a running one gets SIGTERM, then SIGKILL after the grace."""

    TYPE: ClassVar[str] = "yard.placement.stop.v1"
    reason: str
    grace_seconds: float


class WithdrawAttempt(_PoolCommand):
    """Forget it if it still waits; an attempt that was granted meanwhile goes on."""

    TYPE: ClassVar[str] = "yard.placement.withdraw.v1"


# --- yard.placement.decisions.v1: the ledger's facts, key = cluster/pool ---------------------------------------------


class GrantedDevice(Part):
    uuid: str
    model: str


class GrantedAllocation(Part):
    allocation_id: str
    task_rank: int
    node: str
    agent_url: str = ""
    devices: list[GrantedDevice]


class DecisionRecord(Part):
    """What reproduces a decision."""

    now: AwareDatetime
    seed: int
    config_hash: str
    engine_version: str


class _Decision(EventModel):
    TOPIC: ClassVar[str] = topics.PLACEMENT_DECISIONS
    cluster: str
    pool: str
    attempt_id: str
    job_id: str
    project_id: str
    attempt: int
    ledger_time: AwareDatetime

    def key(self) -> str:
        return pool_key(self.cluster, self.pool)

    def subject(self) -> str:
        return self.attempt_id


class AttemptGranted(_Decision):
    """Devices are booked from `ledger_time` on, for the gang as a whole."""

    TYPE: ClassVar[str] = "yard.placement.granted.v1"
    queue: str
    allocations: list[GrantedAllocation]
    decision: DecisionRecord


class AttemptBlocked(_Decision):
    """Sent when the reasons change. `hopeless`: no node could hold it even when empty."""

    TYPE: ClassVar[str] = "yard.placement.blocked.v1"
    reason: str
    detail: str | None = None
    hopeless: bool = False


class AttemptStarted(_Decision):
    """Every task of the attempt runs."""

    TYPE: ClassVar[str] = "yard.placement.started.v1"


class AttemptExited(_Decision):
    """The attempt is over: no task of it runs any more. Its devices may still be emptying."""

    TYPE: ClassVar[str] = "yard.placement.exited.v1"
    outcome: str
    reason: str
    exit_code: int | None = None
    detail: str | None = None
    tasks: list[TaskEnd] = []


class AllocationReleased(_Decision):
    """The node saw the devices empty: they are free from `ledger_time` on. Billed time is [granted_at, ledger_time)."""

    TYPE: ClassVar[str] = "yard.placement.released.v1"
    allocation_id: str
    granted_at: AwareDatetime


class AttemptLost(_Decision):
    """Its node is silent: quota and billing stop at `last_contact`; the devices stay out until the agent reports."""

    TYPE: ClassVar[str] = "yard.placement.lost.v1"
    last_contact: AwareDatetime
    allocation_ids: list[str]


class AttemptRecovered(_Decision):
    """A lost attempt was reported running again: billing goes on from `ledger_time`."""

    TYPE: ClassVar[str] = "yard.placement.recovered.v1"
    allocation_ids: list[str]
