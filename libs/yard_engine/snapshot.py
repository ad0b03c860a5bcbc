"""What the engine sees of a pool, and what it is asked for. Immutable; times and ids are the caller's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """`free`: healthy, present and held by nobody. A healthy one that is not free will be, when its holder ends."""

    uuid: str
    model: str
    free: bool
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """`ready` and not `cordoned` nodes take new work. Free CPU and memory may be negative after a shrink."""

    name: str
    ready: bool
    cordoned: bool
    cpus: float
    memory_bytes: int
    free_cpus: float
    free_memory_bytes: int
    devices: tuple[Device, ...]

    @property
    def schedulable(self) -> bool:
        return self.ready and not self.cordoned


@dataclass(frozen=True, slots=True)
class Shape:
    """What every task of a gang asks for: `gpus` whole devices of one node and one model, with CPU and memory."""

    count: int
    gpus: int
    models: frozenset[str]
    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Pending:
    """One attempt of the ranked pending set."""

    attempt_id: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    task_rank: int
    node: str
    device_uuids: tuple[str, ...]
