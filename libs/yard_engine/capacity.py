"""How many tasks of a shape a node holds: now, and when empty."""

import math
from collections import Counter
from collections.abc import Mapping

from yard_engine.snapshot import Node, Shape

_ROUNDING = 1e-9
"""Booked cores are sums of floats: ten times 0.1 must still fit one core."""


def tasks_by_devices(count_of_model: Mapping[str, int], shape: Shape) -> int:
    """From the number of devices per model: a task's devices are of one model."""
    models = shape.models or count_of_model
    return sum(count_of_model.get(model, 0) // shape.gpus for model in models)


def tasks_by_cpus(cpus: float, shape: Shape) -> int:
    """Without a request they do not limit."""
    if shape.cpus <= 0:
        return shape.count
    return max(math.floor(cpus / shape.cpus + _ROUNDING), 0)


def tasks_by_memory(memory_bytes: int, shape: Shape) -> int:
    if shape.memory_bytes <= 0:
        return shape.count
    return max(memory_bytes // shape.memory_bytes, 0)


def tasks_when_empty(node: Node, shape: Shape, *, sick_heal: bool) -> int:
    """Tasks that fit when nothing else runs; `sick_heal`: on sick devices too, as if they had healed."""
    counts = Counter(device.model for device in node.devices if device.healthy or sick_heal)
    return min(
        tasks_by_devices(counts, shape),
        tasks_by_cpus(node.cpus, shape),
        tasks_by_memory(node.memory_bytes, shape),
    )
