"""Events of queues, nodes as inventory knows them, and usage lines."""

from typing import ClassVar

from pydantic import AwareDatetime

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.node_types import DeviceFacts

# --- yard.queues.state.v1: compacted, key = queue --------------------------------------------------------------------


class QueueState(EventModel):
    TYPE: ClassVar[str] = "yard.queues.state.v1"
    TOPIC: ClassVar[str] = topics.QUEUES_STATE
    queue: str
    gpu_quota: int
    at: AwareDatetime

    def key(self) -> str:
        return self.queue


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
