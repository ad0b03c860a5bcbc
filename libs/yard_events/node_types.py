"""Events between placement and the agents: commands to a node, and what its agent saw. Key: the node."""

from typing import Annotated, ClassVar

from pydantic import Field

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.fields import (
    AgentTime,
    AgentUrl,
    AllocationId,
    Attempt,
    AttemptId,
    BootId,
    ClusterName,
    CommandSeq,
    CpuCores,
    Detail,
    DeviceModel,
    DeviceUuid,
    DeviceUuids,
    Epoch,
    ExitCode,
    GraceSeconds,
    JobId,
    JobName,
    Labels,
    MasterAddress,
    MasterPort,
    MemoryBytes,
    NodeName,
    OutcomeCode,
    PoolName,
    ProjectId,
    ReasonCode,
    SignalNumber,
    Simulated,
    TaskRank,
)
from yard_events.job_document import RunDocument
from yard_events.part import Part

# --- yard.nodes.commands.v1: placement to one agent, key = node ------------------------------------------------------


class _NodeCommand(EventModel):
    """`command_seq` rises per allocation; the agent drops what is not above the last it saw.

    `epoch` is the agent's boot and journal as placement knew them: an agent of another epoch drops the command, because
    placement has closed, or is about to close, every allocation of the old one.
    """

    TOPIC: ClassVar[str] = topics.NODES_COMMANDS
    node: NodeName
    epoch: Epoch
    allocation_id: AllocationId
    command_seq: CommandSeq

    def key(self) -> str:
        return self.node

    def subject(self) -> str:
        return self.allocation_id


class TaskWork(Part):
    """Everything an agent needs to run one task."""

    job_id: JobId
    project_id: ProjectId
    name: JobName
    attempt: Attempt
    attempt_id: AttemptId
    task_rank: TaskRank
    world_size: Annotated[int, Field(description="Tasks of the gang.")]
    local_rank: Annotated[int, Field(description="Number of the task among those of its gang on the node.")]
    local_world_size: Annotated[int, Field(description="Tasks of the gang on the node.")]
    device_uuids: DeviceUuids
    run: RunDocument
    cpus: Annotated[float | None, Field(description="CPU cores that it may use.")] = None
    memory_bytes: Annotated[int | None, Field(description="Memory that it may use, in bytes.")] = None


class PrepareTask(_NodeCommand):
    """First step of a gang: check the devices; task rank 0 also reports a free port for the rendezvous."""

    TYPE: ClassVar[str] = "yard.nodes.prepare.v1"
    work: TaskWork


class StartTask(_NodeCommand):
    """Run it. For a gang this is the last step, with the address that rank 0's agent reported."""

    TYPE: ClassVar[str] = "yard.nodes.start.v1"
    work: TaskWork
    master_addr: MasterAddress = None
    master_port: MasterPort = None


class StopTask(_NodeCommand):
    """SIGTERM now, SIGKILL for the whole tree after the grace; for a prepared task: forget it."""

    TYPE: ClassVar[str] = "yard.nodes.stop.v1"
    grace_seconds: GraceSeconds
    reason: ReasonCode


# --- yard.nodes.events.v1: what agents saw, key = node ---------------------------------------------------------------


class DeviceFacts(Part):
    """A device as the node's driver sees it."""

    uuid: DeviceUuid
    index: Annotated[int, Field(description="The driver's number for it on this node.")]
    model: DeviceModel
    memory_bytes: MemoryBytes
    healthy: Annotated[bool, Field(description="False: it gets no work.")] = True
    detail: Detail = None


class _NodeFact(EventModel):
    """`observed_at` is the agent's clock: it informs, it does not decide."""

    TOPIC: ClassVar[str] = topics.NODES_EVENTS
    node: NodeName
    observed_at: AgentTime

    def key(self) -> str:
        return self.node


class NodeRegistered(_NodeFact):
    """Sent at every start of an agent. `boot_id` changes with a reboot, `journal_id` with a lost agent journal; `epoch`
    is both in one. An agent with a new epoch sends this only when nothing of an older one is left on the node.
    """

    TYPE: ClassVar[str] = "yard.nodes.registered.v1"
    cluster: ClusterName
    pool: PoolName
    boot_id: BootId
    journal_id: Annotated[str, Field(description="Changes when the agent lost its journal.")]
    epoch: Epoch
    agent_url: AgentUrl
    advertise_addr: Annotated[str, Field(description="The node's address for other nodes of a gang.")]
    cpus: CpuCores
    memory_bytes: MemoryBytes
    devices: Annotated[list[DeviceFacts], Field(description="The node's devices.")]
    labels: Labels = {}
    simulated: Simulated = False
    agent_version: Annotated[str, Field(description="Version of the agent's code.")] = ""


class ReportedAllocation(Part):
    """One allocation as the agent knows it. State: prepared, running, exited (its end is in the event stream)."""

    allocation_id: AllocationId
    command_seq: CommandSeq
    state: Annotated[str, Field(description="prepared, running or exited.")]
    emptied: Annotated[bool, Field(description="True once its devices are empty.")] = False


class NodeReport(_NodeFact):
    """Periodic: every allocation the agent knows and the last command it saw for each. Also the heartbeat."""

    TYPE: ClassVar[str] = "yard.nodes.report.v1"
    epoch: Epoch
    allocations: Annotated[list[ReportedAllocation], Field(description="Every allocation that the agent knows.")]


class _TaskFact(_NodeFact):
    allocation_id: AllocationId

    def subject(self) -> str:
        return self.allocation_id


class TaskReady(_TaskFact):
    """Prepared: the devices are there; rank 0's node names the address for the rendezvous."""

    TYPE: ClassVar[str] = "yard.nodes.ready.v1"
    master_addr: MasterAddress = None
    master_port: MasterPort = None


class TaskStarted(_TaskFact):
    """The task's root process runs."""

    TYPE: ClassVar[str] = "yard.nodes.started.v1"
    pid: Annotated[int | None, Field(description="Process id on the node.")] = None


class TaskExited(_TaskFact):
    """The task's root process ended, or it could not start. `reason` says which; exactly one per allocation."""

    TYPE: ClassVar[str] = "yard.nodes.exited.v1"
    outcome: OutcomeCode
    reason: ReasonCode
    exit_code: ExitCode = None
    signal: SignalNumber = None
    detail: Detail = None


class DevicesEmptied(_TaskFact):
    """No process of the allocation is left and its devices hold none: they may be handed on."""

    TYPE: ClassVar[str] = "yard.nodes.emptied.v1"
