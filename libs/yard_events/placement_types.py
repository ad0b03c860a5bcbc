"""Events of placement: admission's commands to a pool, and the ledger's facts. Key: cluster/pool."""

from typing import Annotated, ClassVar

from pydantic import AwareDatetime, Field

from yard_domain.names import pool_key
from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.fields import (
    AgentUrl,
    AllocationId,
    AllocationIds,
    Attempt,
    AttemptId,
    ClusterName,
    Detail,
    DeviceModel,
    DeviceUuid,
    EventTime,
    ExitCode,
    GraceSeconds,
    JobId,
    JobName,
    LedgerTime,
    NodeName,
    OutcomeCode,
    PoolName,
    ProjectId,
    QueueName,
    ReasonCode,
    TaskRank,
)
from yard_events.job_document import RunDocument, TasksDocument
from yard_events.job_types import TaskEnd
from yard_events.part import Part

# --- yard.placement.requests.v1: admission's commands, key = cluster/pool --------------------------------------------


class _PoolCommand(EventModel):
    TOPIC: ClassVar[str] = topics.PLACEMENT_REQUESTS
    cluster: ClusterName
    pool: PoolName
    attempt_id: AttemptId
    job_id: JobId
    project_id: ProjectId

    def key(self) -> str:
        return pool_key(self.cluster, self.pool)

    def subject(self) -> str:
        return self.attempt_id


class PlaceAttempt(_PoolCommand):
    """Place this attempt. Order in the pool's pending set: priority (high first), submitted_at, job_id."""

    TYPE: ClassVar[str] = "yard.placement.place.v1"
    attempt: Attempt
    queue: QueueName
    name: JobName
    priority: Annotated[int, Field(description="Higher goes first.")]
    submitted_at: EventTime
    tasks: TasksDocument
    run: RunDocument
    max_run_seconds: Annotated[float | None, Field(description="Stop it after so many seconds of running.")] = None


class StopAttempt(_PoolCommand):
    """Stop it wherever it is: a pending one ends at once, a running one gets SIGTERM, then SIGKILL after the grace."""

    TYPE: ClassVar[str] = "yard.placement.stop.v1"
    reason: ReasonCode
    grace_seconds: GraceSeconds


class WithdrawAttempt(_PoolCommand):
    """Forget it if it still waits; an attempt that was granted meanwhile goes on."""

    TYPE: ClassVar[str] = "yard.placement.withdraw.v1"


# --- yard.placement.decisions.v1: the ledger's facts, key = cluster/pool ---------------------------------------------


class GrantedDevice(Part):
    """A device booked for a task."""

    uuid: DeviceUuid
    model: DeviceModel


class GrantedAllocation(Part):
    """What one task of the attempt holds."""

    allocation_id: AllocationId
    task_rank: TaskRank
    node: NodeName
    agent_url: AgentUrl = ""
    devices: Annotated[list[GrantedDevice], Field(description="The devices that the task holds.")]


class DecisionRecord(Part):
    """What reproduces a decision."""

    now: Annotated[AwareDatetime, Field(description="The time that the decision was made for.")]
    seed: Annotated[int, Field(description="Seed of its random choices.")]
    config_hash: Annotated[str, Field(description="Hash of the settings that it followed.")]
    engine_version: Annotated[str, Field(description="Version of the code that made it.")]


class _Decision(EventModel):
    TOPIC: ClassVar[str] = topics.PLACEMENT_DECISIONS
    cluster: ClusterName
    pool: PoolName
    attempt_id: AttemptId
    job_id: JobId
    project_id: ProjectId
    attempt: Attempt
    ledger_time: LedgerTime

    def key(self) -> str:
        return pool_key(self.cluster, self.pool)

    def subject(self) -> str:
        return self.attempt_id


class AttemptGranted(_Decision):
    """Devices are booked from `ledger_time` on, for the gang as a whole."""

    TYPE: ClassVar[str] = "yard.placement.granted.v1"
    queue: QueueName
    allocations: Annotated[list[GrantedAllocation], Field(description="One per task, by rank.")]
    decision: DecisionRecord


class AttemptBlocked(_Decision):
    """Sent when the reasons change. `hopeless`: no node could hold it even when empty."""

    TYPE: ClassVar[str] = "yard.placement.blocked.v1"
    reason: ReasonCode
    detail: Detail = None
    hopeless: Annotated[bool, Field(description="True: no node could hold it even when empty.")] = False


class AttemptStarted(_Decision):
    """Every task of the attempt runs."""

    TYPE: ClassVar[str] = "yard.placement.started.v1"


class AttemptExited(_Decision):
    """The attempt is over: no task of it runs any more. Its devices may still be emptying."""

    TYPE: ClassVar[str] = "yard.placement.exited.v1"
    outcome: OutcomeCode
    reason: ReasonCode
    exit_code: ExitCode = None
    detail: Detail = None
    tasks: Annotated[list[TaskEnd], Field(description="How each task ended, by rank.")] = []


class AllocationReleased(_Decision):
    """The node saw the devices empty: they are free from `ledger_time` on. Billed time is [granted_at, ledger_time)."""

    TYPE: ClassVar[str] = "yard.placement.released.v1"
    allocation_id: AllocationId
    granted_at: Annotated[AwareDatetime, Field(description="Ledger time of the grant: billing begins here.")]


class AttemptLost(_Decision):
    """Its node is silent: quota and billing stop at `last_contact`; the devices stay out until the agent reports."""

    TYPE: ClassVar[str] = "yard.placement.lost.v1"
    last_contact: Annotated[AwareDatetime, Field(description="When the node was heard of last.")]
    allocation_ids: AllocationIds


class AttemptRecovered(_Decision):
    """A lost attempt was reported running again: billing goes on from `ledger_time`."""

    TYPE: ClassVar[str] = "yard.placement.recovered.v1"
    allocation_ids: AllocationIds
