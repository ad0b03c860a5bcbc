"""Events between placement and the agents: commands to a node, and what its agent saw. Key: the node."""

from typing import ClassVar

from pydantic import AwareDatetime

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.job_document import RunDocument
from yard_events.part import Part

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


class TaskWork(Part):
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


class DeviceFacts(Part):
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


class ReportedAllocation(Part):
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
