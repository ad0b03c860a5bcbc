"""A node as inventory knows it, and how facts change it. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime

from yard_domain.errors import Permanent
from yard_domain.names import NAME_RULE, is_name
from yard_domain.quantities import MAX_MEMORY_BYTES
from yard_domain.states import NodeState
from yard_events.types import DeviceFacts, InventoryNode, NodeRegistered

MAX_DEVICES = 64
MAX_CPUS = 4096
MAX_LABELS = 64
MAX_TEXT = 512


@dataclass(frozen=True, slots=True)
class Node:
    """`devices` in the order of their index. `last_contact` is the control plane's clock."""

    name: str
    cluster: str
    pool: str
    state: NodeState
    cordoned: bool
    generation: int
    boot_id: str
    agent_url: str
    cpus: float
    memory_bytes: int
    labels: dict[str, str]
    simulated: bool
    last_contact: datetime
    folded_offset: int
    devices: tuple[DeviceFacts, ...] = ()

    def same_for_others(self, other: "Node") -> bool:
        """Whether nothing changed that the rest of the system acts on. A heartbeat alone is nothing of that kind."""
        return replace(self, last_contact=other.last_contact, folded_offset=other.folded_offset) == other

    def to_event(self, at: datetime) -> InventoryNode:
        return InventoryNode(
            node=self.name,
            cluster=self.cluster,
            pool=self.pool,
            state=self.state.value,
            cordoned=self.cordoned,
            generation=self.generation,
            boot_id=self.boot_id,
            agent_url=self.agent_url,
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            devices=list(self.devices),
            labels=self.labels,
            simulated=self.simulated,
            last_contact=self.last_contact,
            at=at,
        )


def register(known: Node | None, fact: NodeRegistered, now: datetime, offset: int) -> Node:
    """The node after `fact`. Other hardware under the same name is another generation; a cordon stays."""
    devices = tuple(sorted(fact.devices, key=lambda device: device.index))
    node = Node(
        name=fact.node,
        cluster=fact.cluster,
        pool=fact.pool,
        state=NodeState.READY,
        cordoned=known.cordoned if known is not None else False,
        generation=known.generation if known is not None else 1,
        boot_id=fact.boot_id,
        agent_url=fact.agent_url,
        cpus=fact.cpus,
        memory_bytes=fact.memory_bytes,
        labels=fact.labels,
        simulated=fact.simulated,
        last_contact=now,
        folded_offset=offset,
        devices=devices,
    )
    if known is not None and _hardware(known) != _hardware(node):
        node = replace(node, generation=known.generation + 1)
    return node


def heard(node: Node, now: datetime, offset: int) -> Node:
    """The node after a report: whatever it was taken for, it is there."""
    return replace(node, state=NodeState.READY, last_contact=now, folded_offset=offset)


def without_devices(node: Node, uuids: frozenset[str]) -> Node:
    """The node after devices of it showed up in another one."""
    left = tuple(device for device in node.devices if device.uuid not in uuids)
    return replace(node, devices=left, generation=node.generation + 1)


def _hardware(node: Node) -> tuple[object, ...]:
    """Health is not hardware, and neither is the order in which a driver counts its devices."""
    devices = frozenset((device.uuid, device.model, device.memory_bytes) for device in node.devices)
    return node.cpus, node.memory_bytes, devices


def check_registration(fact: NodeRegistered, cluster: str) -> None:
    """Raises Permanent, naming every field that cannot be true."""
    faults = [*_node_faults(fact, cluster), *_device_faults(fact.devices)]
    if faults:
        raise Permanent(f"node {fact.node!r} cannot be registered: {'; '.join(faults)}")


def _node_faults(fact: NodeRegistered, cluster: str) -> list[str]:
    faults: list[str] = []
    if not is_name(fact.node):
        faults.append(f"node: must be {NAME_RULE}")
    if fact.cluster != cluster:
        faults.append(f"cluster: {fact.cluster!r} is not served here, only {cluster!r} is")
    if not is_name(fact.pool):
        faults.append(f"pool: must be {NAME_RULE}")
    if not 0 < fact.cpus <= MAX_CPUS:
        faults.append(f"cpus: must be above 0 and at most {MAX_CPUS}")
    if not 0 < fact.memory_bytes <= MAX_MEMORY_BYTES:
        faults.append(f"memory_bytes: must be above 0 and at most {MAX_MEMORY_BYTES}")
    if len(fact.labels) > MAX_LABELS or not all(_is_text(t) for item in fact.labels.items() for t in item):
        faults.append(f"labels: at most {MAX_LABELS}, each of printable text")
    faults += [
        f"{name}: must be printable text" for name in ("boot_id", "agent_url") if not _is_text(getattr(fact, name))
    ]
    if not fact.boot_id:
        faults.append("boot_id: must not be empty")
    return faults


def _device_faults(devices: list[DeviceFacts]) -> list[str]:
    faults = [
        f"devices: the same {name} twice"
        for name in ("uuid", "index")
        if len({getattr(device, name) for device in devices}) < len(devices)
    ]
    if len(devices) > MAX_DEVICES:
        faults.append(f"devices: {len(devices)}, at most {MAX_DEVICES} in one node")
    for position, device in enumerate(devices[:MAX_DEVICES]):
        if not (device.uuid and _is_text(device.uuid)):
            faults.append(f"devices.{position}.uuid: must be printable text")
        if not (device.model and _is_text(device.model)):
            faults.append(f"devices.{position}.model: must be printable text")
        if not 0 <= device.index < 2**31:
            faults.append(f"devices.{position}.index: must be at least 0")
        if not 0 < device.memory_bytes <= MAX_MEMORY_BYTES:
            faults.append(f"devices.{position}.memory_bytes: must be above 0 and at most {MAX_MEMORY_BYTES}")
        if device.detail is not None and "\0" in device.detail:
            faults.append(f"devices.{position}.detail: must be text")
    return faults


def _is_text(value: str) -> bool:
    return len(value) <= MAX_TEXT and (not value or value.isprintable())
