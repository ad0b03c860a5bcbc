"""A mutable working copy of a snapshot: what is left while a plan is being made."""

from yard_engine.capacity import tasks_by_cpus, tasks_by_free_devices, tasks_by_memory
from yard_engine.snapshot import Device, Node, Shape, TaskPlacement


class NodeRoom:
    """What is left of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.free: list[Device] = [device for device in node.devices if device.free] if node.schedulable else []
        self.cpus = node.free_cpus
        self.memory_bytes = node.free_memory_bytes
        self.held = False

    def tasks(self, shape: Shape) -> int:
        """How many tasks of the shape fit now."""
        if not self.node.schedulable:
            return 0
        return min(
            tasks_by_free_devices(self.free, shape),
            tasks_by_cpus(self.cpus, shape),
            tasks_by_memory(self.memory_bytes, shape),
        )

    def take(self, shape: Shape) -> tuple[str, ...]:
        """Take the devices of one task: of the model with the fewest left that suffices, lowest index first."""
        per_model: dict[str, list[Device]] = {}
        for device in self.free:
            if not shape.models or device.model in shape.models:
                per_model.setdefault(device.model, []).append(device)
        fitting = [devices for devices in per_model.values() if len(devices) >= shape.gpus]
        chosen = min(fitting, key=lambda devices: (len(devices), devices[0].model))[: shape.gpus]
        taken = {device.uuid for device in chosen}
        self.free = [device for device in self.free if device.uuid not in taken]
        self.cpus -= shape.cpus
        self.memory_bytes -= shape.memory_bytes
        return tuple(device.uuid for device in chosen)


class Statement:
    """The plan so far over one snapshot."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.rooms = [NodeRoom(node) for node in sorted(nodes, key=lambda node: node.name)]

    def open_rooms(self) -> list[NodeRoom]:
        return [room for room in self.rooms if not room.held]

    def place(self, choice: list[tuple[NodeRoom, int]], shape: Shape) -> tuple[TaskPlacement, ...]:
        """Carry out a choice of (node, number of tasks); task ranks run node by node."""
        placements: list[TaskPlacement] = []
        for room, count in choice:
            for _ in range(count):
                placements.append(TaskPlacement(len(placements), room.node.name, room.take(shape)))
        return tuple(placements)
