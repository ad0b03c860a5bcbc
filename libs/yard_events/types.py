"""Every event type of this version, grouped by the topic that carries it.

Commands are imperative, facts are past tense. Times are UTC. Ids: a job has attempts (1, 2, …), an attempt has one
allocation per task. Ledger times come from placement's clock and are strictly increasing per pool.
"""

from typing import ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict

from yard_domain.names import pool_key
from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.job_document import JobDocument, RunDocument, TasksDocument


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


# --- yard.jobs.requests.v1: commands of people, key = job ------------------------------------------------------------


class SubmitJob(EventModel):
    TYPE: ClassVar[str] = "yard.jobs.submit.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: str
    project_id: str
    spec: JobDocument
    submitted_by: str
    submitted_at: AwareDatetime

    def key(self) -> str:
        return self.job_id


class CancelJob(EventModel):
    TYPE: ClassVar[str] = "yard.jobs.cancel.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: str
    project_id: str
    requested_by: str

    def key(self) -> str:
        return self.job_id


# --- yard.jobs.events.v1: the lifecycle for the world, key = job -----------------------------------------------------


class TaskPlace(_Part):
    """Where one task of the current attempt runs, and how to reach its output."""

    task_rank: int
    allocation_id: str
    node: str
    device_uuids: list[str]
    agent_url: str = ""


class TaskEnd(_Part):
    task_rank: int
    outcome: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None


class JobFact(EventModel):
    """What every lifecycle fact says. `reason` is a code of `yard_domain.reasons`; `detail` adds figures to it."""

    TOPIC: ClassVar[str] = topics.JOBS_EVENTS
    job_id: str
    project_id: str
    queue: str
    name: str
    state: str
    attempt: int
    at: AwareDatetime
    reason: str | None = None
    detail: str | None = None

    def key(self) -> str:
        return self.job_id


class JobQueued(JobFact):
    """Also sent again when the stated reason for waiting changes."""

    TYPE: ClassVar[str] = "yard.jobs.queued.v1"
    submitted_by: str | None = None
    submitted_at: AwareDatetime | None = None


class JobAdmitted(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.admitted.v1"


class JobStarting(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.starting.v1"
    tasks: list[TaskPlace]


class JobRunning(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.running.v1"


class JobCancelling(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.cancelling.v1"


class JobLost(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.lost.v1"


class JobEnded(JobFact):
    exit_code: int | None = None
    tasks: list[TaskEnd] = []


class JobSucceeded(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.succeeded.v1"


class JobFailed(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.failed.v1"


class JobCancelled(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.cancelled.v1"


class JobExpired(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.expired.v1"


# --- yard.queues.state.v1: compacted, key = queue --------------------------------------------------------------------


class QueueState(EventModel):
    TYPE: ClassVar[str] = "yard.queues.state.v1"
    TOPIC: ClassVar[str] = topics.QUEUES_STATE
    queue: str
    gpu_quota: int
    at: AwareDatetime

    def key(self) -> str:
        return self.queue


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


class GrantedDevice(_Part):
    uuid: str
    model: str


class GrantedAllocation(_Part):
    allocation_id: str
    task_rank: int
    node: str
    agent_url: str = ""
    devices: list[GrantedDevice]


class DecisionRecord(_Part):
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


# --- yard.nodes.commands.v1: placement to one agent, key = node ------------------------------------------------------


class _NodeCommand(EventModel):
    """`command_seq` rises per allocation; the agent drops what is not above the last it saw.

    `epoch` is the agent's boot and journal as placement knew them: an agent of another epoch drops the command, because
    placement has closed, or is about to close, every allocation of the old one.
    """

    TOPIC: ClassVar[str] = topics.NODES_COMMANDS
    node: str
    epoch: str
    allocation_id: str
    command_seq: int

    def key(self) -> str:
        return self.node

    def subject(self) -> str:
        return self.allocation_id


class TaskWork(_Part):
    """Everything an agent needs to run one task."""

    job_id: str
    project_id: str
    name: str
    attempt: int
    attempt_id: str
    task_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device_uuids: list[str]
    run: RunDocument
    cpus: float | None = None
    memory_bytes: int | None = None


class PrepareTask(_NodeCommand):
    """First step of a gang: check the devices; task rank 0 also reports a free port for the rendezvous."""

    TYPE: ClassVar[str] = "yard.nodes.prepare.v1"
    work: TaskWork


class StartTask(_NodeCommand):
    """Run it. For a gang this is the last step, with the address that rank 0's agent reported."""

    TYPE: ClassVar[str] = "yard.nodes.start.v1"
    work: TaskWork
    master_addr: str | None = None
    master_port: int | None = None


class StopTask(_NodeCommand):
    """SIGTERM now, SIGKILL for the whole tree after the grace; for a prepared task: forget it."""

    TYPE: ClassVar[str] = "yard.nodes.stop.v1"
    grace_seconds: float
    reason: str


# --- yard.nodes.events.v1: what agents saw, key = node ---------------------------------------------------------------


class DeviceFacts(_Part):
    uuid: str
    index: int
    model: str
    memory_bytes: int
    healthy: bool = True
    detail: str | None = None


class _NodeFact(EventModel):
    """`observed_at` is the agent's clock: it informs, it does not decide."""

    TOPIC: ClassVar[str] = topics.NODES_EVENTS
    node: str
    observed_at: AwareDatetime

    def key(self) -> str:
        return self.node


class NodeRegistered(_NodeFact):
    """Sent at every start of an agent. `boot_id` changes with a reboot, `journal_id` with a lost agent journal; `epoch`
    is both in one. An agent with a new epoch sends this only when nothing of an older one is left on the node.
    """

    TYPE: ClassVar[str] = "yard.nodes.registered.v1"
    cluster: str
    pool: str
    boot_id: str
    journal_id: str
    epoch: str
    agent_url: str
    advertise_addr: str
    cpus: float
    memory_bytes: int
    devices: list[DeviceFacts]
    labels: dict[str, str] = {}
    simulated: bool = False
    agent_version: str = ""


class ReportedAllocation(_Part):
    """One allocation as the agent knows it. State: prepared, running, exited (its end is in the event stream)."""

    allocation_id: str
    command_seq: int
    state: str
    emptied: bool = False


class NodeReport(_NodeFact):
    """Periodic: every allocation the agent knows and the last command it saw for each. Also the heartbeat."""

    TYPE: ClassVar[str] = "yard.nodes.report.v1"
    epoch: str
    allocations: list[ReportedAllocation]


class _TaskFact(_NodeFact):
    allocation_id: str

    def subject(self) -> str:
        return self.allocation_id


class TaskReady(_TaskFact):
    TYPE: ClassVar[str] = "yard.nodes.ready.v1"
    master_addr: str | None = None
    master_port: int | None = None


class TaskStarted(_TaskFact):
    TYPE: ClassVar[str] = "yard.nodes.started.v1"
    pid: int | None = None


class TaskExited(_TaskFact):
    """The task's root process ended, or it could not start. `reason` says which; exactly one per allocation."""

    TYPE: ClassVar[str] = "yard.nodes.exited.v1"
    outcome: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None


class DevicesEmptied(_TaskFact):
    """No process of the allocation is left and its devices hold none: they may be handed on."""

    TYPE: ClassVar[str] = "yard.nodes.emptied.v1"


# --- yard.inventory.state.v1: compacted, key = node ------------------------------------------------------------------


class InventoryNode(EventModel):
    """All that is known of one node. `generation` rises when its hardware changes."""

    TYPE: ClassVar[str] = "yard.inventory.node.v1"
    TOPIC: ClassVar[str] = topics.INVENTORY_STATE
    node: str
    cluster: str
    pool: str
    state: str
    cordoned: bool
    generation: int
    boot_id: str
    agent_url: str
    cpus: float
    memory_bytes: int
    devices: list[DeviceFacts]
    labels: dict[str, str] = {}
    simulated: bool = False
    last_contact: AwareDatetime
    at: AwareDatetime

    def key(self) -> str:
        return self.node


# --- yard.billing.usage.v1: immutable lines, key = project -----------------------------------------------------------


class UsageRecorded(EventModel):
    """One allocation's device time on one model, exact: device_micros = devices · (until − since), in µs."""

    TYPE: ClassVar[str] = "yard.billing.usage_recorded.v1"
    TOPIC: ClassVar[str] = topics.BILLING_USAGE
    line_id: str
    project_id: str
    queue: str
    job_id: str
    attempt: int
    allocation_id: str
    model: str
    devices: int
    since: AwareDatetime
    until: AwareDatetime
    device_micros: int

    def key(self) -> str:
        return self.project_id
