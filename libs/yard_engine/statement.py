"""A mutable working copy of a snapshot: what is left while a plan is being made."""

from yard_engine.capacity import tasks_by_cpus, tasks_by_devices, tasks_by_memory
from yard_engine.snapshot import Node, Shape, TaskPlacement


class NodeRoom:
    """What is left of one node. Nothing is free on a node that takes no work."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cpus = node.free_cpus
        self.memory_bytes = node.free_memory_bytes
        self.held = False
        self._free: dict[str, list[str]] = {}
        """Model → uuids of its free devices, lowest index first."""
        for device in node.devices:
            if device.free and node.schedulable:
                self._free.setdefault(device.model, []).append(device.uuid)
        self._counts = {model: len(uuids) for model, uuids in self._free.items()}
        self.free_devices = sum(self._counts.values())

    def free_of(self, shape: Shape) -> int:
        """How many free devices are of a model that the shape takes."""
        return sum(count for model, count in self._counts.items() if not shape.models or model in shape.models)

    def tasks_by_devices(self, shape: Shape) -> int:
        """How many tasks the free devices allow, whatever CPU and memory say."""
        return tasks_by_devices(self._counts, shape)

    def tasks(self, shape: Shape) -> int:
        """How many tasks of the shape fit now."""
        by_devices = tasks_by_devices(self._counts, shape)
        if by_devices == 0:
            return 0
        return min(by_devices, tasks_by_cpus(self.cpus, shape), tasks_by_memory(self.memory_bytes, shape))

    def take(self, shape: Shape) -> tuple[str, ...]:
        """Take the devices of one task: of the model with the fewest left that suffices, lowest index first."""
        model = min(
            (
                model
                for model, count in self._counts.items()
                if count >= shape.gpus and (not shape.models or model in shape.models)
            ),
            key=lambda model: (self._counts[model], model),
        )
        uuids = self._free[model]
        taken = tuple(uuids[: shape.gpus])
        del uuids[: shape.gpus]
        self._counts[model] -= shape.gpus
        self.free_devices -= shape.gpus
        self.cpus -= shape.cpus
        self.memory_bytes -= shape.memory_bytes
        return taken


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
