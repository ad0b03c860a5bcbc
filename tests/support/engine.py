"""Small builders for the engine's case tables: `node("n1").gpus(8, free=3)`, `gang(2, gpus=8)`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from yard_engine.decide import Plan, decide
from yard_engine.snapshot import Device, Node, Pending, Shape

GIB = 2**30


@dataclass(frozen=True)
class NodeBuilder:
    name: str
    devices: tuple[Device, ...] = ()
    cpu: tuple[float, float] = (64.0, 64.0)
    mem: tuple[int, int] = (256 * GIB, 256 * GIB)
    is_ready: bool = True
    is_cordoned: bool = False

    def gpus(self, count: int, *, free: int | None = None, sick: int = 0, model: str = "H100") -> "NodeBuilder":
        """More devices: the first `free` of them free, the last `sick` of them sick, those between held."""
        free = count - sick if free is None else free
        assert free + sick <= count
        more = tuple(
            Device(f"{self.name}/{len(self.devices) + i}", model, free=i < free, healthy=i < count - sick)
            for i in range(count)
        )
        return replace(self, devices=self.devices + more)

    def cpus(self, total: float, *, free: float | None = None) -> "NodeBuilder":
        return replace(self, cpu=(total, total if free is None else free))

    def memory(self, total: int, *, free: int | None = None) -> "NodeBuilder":
        return replace(self, mem=(total, total if free is None else free))

    def silent(self) -> "NodeBuilder":
        return replace(self, is_ready=False)

    def cordoned(self) -> "NodeBuilder":
        return replace(self, is_cordoned=True)

    def build(self) -> Node:
        return Node(
            name=self.name,
            ready=self.is_ready,
            cordoned=self.is_cordoned,
            cpus=self.cpu[0],
            memory_bytes=self.mem[0],
            free_cpus=self.cpu[1],
            free_memory_bytes=self.mem[1],
            devices=self.devices,
        )


def node(name: str) -> NodeBuilder:
    return NodeBuilder(name)


def gang(count: int, *, gpus: int = 1, models: str = "", cpus: float = 0.0, memory: int = 0) -> Shape:
    return Shape(count, gpus, frozenset(models.split()), cpus, memory)


def task(**shape: object) -> Shape:
    return gang(1, **shape)  # type: ignore[arg-type]


def plan(nodes: list[NodeBuilder], *shapes: Shape) -> Plan:
    """The shapes as attempts a0, a1, … in this order."""
    return decide(tuple(n.build() for n in nodes), [Pending(f"a{i}", shape) for i, shape in enumerate(shapes)])


def places(made: Plan, attempt_id: str = "a0") -> str | None:
    """Where its tasks went, in rank order: `n1 n1 n2`; None if it was not placed."""
    for placed in made.placed:
        if placed.attempt_id == attempt_id:
            assert [t.task_rank for t in placed.tasks] == list(range(len(placed.tasks)))
            return " ".join(t.node for t in placed.tasks)
    return None


def devices(made: Plan, attempt_id: str = "a0") -> list[tuple[str, ...]]:
    return [task.device_uuids for placed in made.placed if placed.attempt_id == attempt_id for task in placed.tasks]


def reason(made: Plan, attempt_id: str = "a0") -> str | None:
    """`code`, or `code!` when it is hopeless."""
    for blocked in made.blocked:
        if blocked.attempt_id == attempt_id:
            return blocked.reason.value + ("!" if blocked.hopeless else "")
    return None


@dataclass
class Rounds:
    """A pool over rounds of arrivals and departures, driven by the real `decide`."""

    nodes: dict[str, Node]
    pending: list[tuple[str, Shape]] = field(default_factory=list)
    running: dict[str, tuple[int, Shape, list[tuple[str, tuple[str, ...]]]]] = field(default_factory=dict)
    now: int = 0

    @classmethod
    def of(cls, *builders: NodeBuilder) -> "Rounds":
        return cls({b.name: b.build() for b in builders})

    def round(self, arrivals: list[tuple[str, Shape]], runs: Callable[[str], int]) -> list[str]:
        """Ends what has run its rounds, then decides; returns who was placed. `runs(name)`: for how many rounds."""
        self.now += 1
        for name in [name for name, (until, _, _) in self.running.items() if until <= self.now]:
            self._move(*self.running.pop(name)[1:], free=True)
        self.pending += arrivals
        made = decide(tuple(self.nodes.values()), [Pending(name, shape) for name, shape in self.pending])
        shapes = dict(self.pending)
        for placed in made.placed:
            held = [(t.node, t.device_uuids) for t in placed.tasks]
            self.running[placed.attempt_id] = (self.now + runs(placed.attempt_id), shapes[placed.attempt_id], held)
            self._move(shapes[placed.attempt_id], held, free=False)
        gone = {placed.attempt_id for placed in made.placed}
        self.pending = [item for item in self.pending if item[0] not in gone]
        return sorted(gone)

    def _move(self, shape: Shape, held: list[tuple[str, tuple[str, ...]]], *, free: bool) -> None:
        sign = 1 if free else -1
        for name, uuids in held:
            n = self.nodes[name]
            assert all(d.free is not free for d in n.devices if d.uuid in uuids), "a device was handed out twice"
            self.nodes[name] = replace(
                n,
                devices=tuple(replace(d, free=free) if d.uuid in uuids else d for d in n.devices),
                free_cpus=n.free_cpus + sign * shape.cpus,
                free_memory_bytes=n.free_memory_bytes + sign * shape.memory_bytes,
            )
