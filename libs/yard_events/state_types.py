"""Events of queues, nodes as inventory knows them, and usage lines."""

from typing import Annotated, ClassVar

from pydantic import AwareDatetime, Field

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.fields import (
    AgentUrl,
    AllocationId,
    Attempt,
    BootId,
    ClusterName,
    CpuCores,
    DeviceModel,
    EventTime,
    JobId,
    Labels,
    MemoryBytes,
    NodeName,
    NodeStateCode,
    PoolName,
    ProjectId,
    QueueName,
    Simulated,
)
from yard_events.node_types import DeviceFacts

# --- yard.queues.state.v1: compacted, key = queue --------------------------------------------------------------------


class QueueState(EventModel):
    """A queue as it is configured now."""

    TYPE: ClassVar[str] = "yard.queues.state.v1"
    TOPIC: ClassVar[str] = topics.QUEUES_STATE
    queue: QueueName
    gpu_quota: Annotated[int, Field(description="Devices that its jobs may hold together.")]
    at: EventTime

    def key(self) -> str:
        return self.queue


# --- yard.inventory.state.v1: compacted, key = node ------------------------------------------------------------------


class InventoryNode(EventModel):
    """All that is known of one node. `generation` rises when its hardware changes."""

    TYPE: ClassVar[str] = "yard.inventory.node.v1"
    TOPIC: ClassVar[str] = topics.INVENTORY_STATE
    node: NodeName
    cluster: ClusterName
    pool: PoolName
    state: NodeStateCode
    cordoned: Annotated[bool, Field(description="True: it gets no new work.")]
    generation: Annotated[int, Field(description="Rises when its hardware changes.")]
    boot_id: BootId
    agent_url: AgentUrl
    cpus: CpuCores
    memory_bytes: MemoryBytes
    devices: Annotated[list[DeviceFacts], Field(description="The node's devices.")]
    labels: Labels = {}
    simulated: Simulated = False
    last_contact: Annotated[AwareDatetime, Field(description="When the node was heard of last.")]
    at: EventTime

    def key(self) -> str:
        return self.node


# --- yard.billing.usage.v1: immutable lines, key = project -----------------------------------------------------------


class UsageRecorded(EventModel):
    """One allocation's device time on one model, exact: device_micros = devices · (until − since), in µs."""

    TYPE: ClassVar[str] = "yard.billing.usage_recorded.v1"
    TOPIC: ClassVar[str] = topics.BILLING_USAGE
    line_id: Annotated[str, Field(description="The line; billing never writes two with the same.")]
    project_id: ProjectId
    queue: QueueName
    job_id: JobId
    attempt: Attempt
    allocation_id: AllocationId
    model: DeviceModel
    devices: Annotated[int, Field(description="Devices of that model which the allocation held.")]
    since: Annotated[AwareDatetime, Field(description="Ledger time from which it counts.")]
    until: Annotated[AwareDatetime, Field(description="Ledger time at which it ends.")]
    device_micros: Annotated[int, Field(description="Device-microseconds, exact.")]

    def key(self) -> str:
        return self.project_id
