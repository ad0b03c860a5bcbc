"""How many tasks of a shape a node holds: now, and when empty."""

import math
from collections.abc import Iterable

from yard_engine.snapshot import Device, Node, Shape


def _tasks_by_devices(devices: Iterable[Device], shape: Shape, *, free_only: bool) -> int:
    """A task's devices are of one model, so the count is per model."""
    per_model: dict[str, int] = {}
    for device in devices:
        if (device.free or not free_only) and (not shape.models or device.model in shape.models):
            per_model[device.model] = per_model.get(device.model, 0) + 1
    return sum(count // shape.gpus for count in per_model.values())


def _tasks_beside(cpus: float, memory_bytes: int, shape: Shape) -> int:
    """How many tasks the CPU and memory allow; without a request they do not limit."""
    limit = shape.count
    if shape.cpus > 0:
        limit = min(limit, math.floor(cpus / shape.cpus + 1e-9))
    if shape.memory_bytes > 0:
        limit = min(limit, memory_bytes // shape.memory_bytes)
    return max(limit, 0)


def tasks_when_empty(node: Node, shape: Shape) -> int:
    """Tasks that fit when nothing else runs, sick devices included: they may heal."""
    by_devices = _tasks_by_devices(node.devices, shape, free_only=False)
    return min(by_devices, _tasks_beside(node.cpus, node.memory_bytes, shape))


def tasks_by_free_devices(devices: Iterable[Device], shape: Shape) -> int:
    return _tasks_by_devices(devices, shape, free_only=True)


def tasks_by_cpus(cpus: float, shape: Shape) -> int:
    return _tasks_beside(cpus, 2**62, shape)


def tasks_by_memory(memory_bytes: int, shape: Shape) -> int:
    return _tasks_beside(math.inf, memory_bytes, shape)
