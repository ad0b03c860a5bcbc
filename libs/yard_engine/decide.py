"""`decide(snapshot) -> plan`: the ranked pending set against what is free, the gang as a whole or not at all.

An attempt that could run here but does not fit now gets a hold on the nodes nearest to fitting it, and nothing behind
it may start there. A held node's free capacity only grows until the hold moves to a better one, so large work does not
starve behind small work, and the rest of the pool stays open to others. What cannot fit however many others end (sick
devices, cordoned nodes, nodes held for earlier ones) holds nothing: that would idle devices for no end in sight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from yard_domain.quantities import format_bytes
from yard_domain.reasons import Reason
from yard_engine.capacity import tasks_by_cpus, tasks_by_memory, tasks_when_empty
from yard_engine.snapshot import Node, Pending, Shape, TaskPlacement
from yard_engine.statement import NodeRoom, Statement


@dataclass(frozen=True, slots=True)
class Placed:
    attempt_id: str
    tasks: tuple[TaskPlacement, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """`hopeless`: not even an empty pool of these nodes could hold it."""

    attempt_id: str
    reason: Reason
    detail: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    placed: tuple[Placed, ...]
    blocked: tuple[Blocked, ...]


def decide(nodes: tuple[Node, ...], pending: Sequence[Pending]) -> Plan:
    """One pass over the pending set in its order. The same arguments always give the same plan."""
    statement = Statement(nodes)
    placed: list[Placed] = []
    blocked: list[Blocked] = []
    answers: dict[Shape, Blocked] = {}
    for attempt in pending:
        shape = attempt.shape
        known = answers.get(shape)
        if known is not None:
            blocked.append(Blocked(attempt.attempt_id, known.reason, known.detail, known.hopeless))
            continue
        choice = choose(statement.open_rooms(), shape)
        if choice is not None:
            placed.append(Placed(attempt.attempt_id, statement.place(choice, shape)))
            continue
        answer = explain(statement, attempt)
        answers[shape] = answer
        blocked.append(answer)
        if not answer.hopeless:
            hold(statement.open_rooms(), shape)
    return Plan(tuple(placed), tuple(blocked))


def choose(rooms: Sequence[NodeRoom], shape: Shape) -> list[tuple[NodeRoom, int]] | None:
    """Which nodes take how many tasks: one node if any can hold all, the fullest such; else the fewest nodes."""
    fitting = [(room, tasks) for room in rooms if (tasks := room.tasks(shape)) > 0]
    whole = [room for room, tasks in fitting if tasks >= shape.count]
    if whole:
        return [(min(whole, key=lambda room: (room.free_devices, room.node.name)), shape.count)]
    if sum(tasks for _, tasks in fitting) < shape.count:
        return None
    fitting.sort(key=lambda item: (-item[1], item[0].free_devices, item[0].node.name))
    choice: list[tuple[NodeRoom, int]] = []
    missing = shape.count
    for index, (room, tasks) in enumerate(fitting):
        if tasks >= missing:  # the last one: the fullest of those that suffice
            rest = [item for item in fitting[index:] if item[1] >= missing]
            last = min(rest, key=lambda item: (item[0].free_devices, item[0].node.name))
            choice.append((last[0], missing))
            return choice
        choice.append((room, tasks))
        missing -= tasks
    raise AssertionError("the sum of what fits was checked above")


def explain(statement: Statement, attempt: Pending) -> Blocked:
    """Why it does not fit, the most lasting cause first."""
    shape = attempt.shape
    nodes = [room.node for room in statement.rooms]

    def blocked(reason: Reason, detail: str, hopeless: bool = False) -> Blocked:
        return Blocked(attempt.attempt_id, reason, detail, hopeless)

    if not nodes:
        return blocked(Reason.NO_NODES, "no node has registered", hopeless=True)
    models = {device.model for node in nodes for device in node.devices}
    if shape.models and not models & shape.models:
        wanted, present = ", ".join(sorted(shape.models)), ", ".join(sorted(models))
        return blocked(Reason.WRONG_MODEL, f"asked for {wanted}; the pool has {present}", hopeless=True)
    at_most = sum(tasks_when_empty(node, shape, sick_heal=True) for node in nodes)
    if at_most < shape.count:
        return blocked(
            Reason.TOO_LARGE, f"{shape.count} tasks asked for; the empty pool holds {at_most} like it", hopeless=True
        )
    ready = [node for node in nodes if node.ready]
    if sum(tasks_when_empty(node, shape, sick_heal=False) for node in ready) < shape.count:
        return blocked(Reason.UNHEALTHY, _what_is_sick(nodes))
    usable = [node for node in ready if not node.cordoned]
    if sum(tasks_when_empty(node, shape, sick_heal=False) for node in usable) < shape.count:
        return blocked(Reason.CORDONED, f"{len(ready) - len(usable)} of {len(nodes)} nodes are cordoned")
    return blocked(*_shortage(statement, shape))


def _what_is_sick(nodes: Sequence[Node]) -> str:
    silent = sum(not node.ready for node in nodes)
    sick = sum(not device.healthy for node in nodes if node.ready for device in node.devices)
    return f"{silent} of {len(nodes)} nodes do not answer; {sick} devices of the others are not healthy"


def _shortage(statement: Statement, shape: Shape) -> tuple[Reason, str]:
    rooms = statement.rooms
    if sum(room.tasks(shape) for room in rooms) >= shape.count:
        return Reason.BEHIND_EARLIER, "the free devices are held for an earlier job"
    by_devices = {room.node.name: room.tasks_by_devices(shape) for room in rooms}
    if sum(by_devices.values()) < shape.count:
        free = sum(room.free_devices for room in rooms)
        return Reason.INSUFFICIENT_GPU, f"{shape.count} × {shape.gpus} GPUs asked for; {free} free"
    by_cpus = sum(min(by_devices[room.node.name], tasks_by_cpus(room.cpus, shape)) for room in rooms)
    if by_cpus < shape.count:
        return Reason.INSUFFICIENT_CPU, f"{shape.cpus:g} CPU cores asked for beside the GPUs of each task"
    by_memory = sum(min(by_devices[room.node.name], tasks_by_memory(room.memory_bytes, shape)) for room in rooms)
    if by_memory < shape.count:
        return (
            Reason.INSUFFICIENT_MEMORY,
            f"{format_bytes(shape.memory_bytes)} asked for beside the GPUs of each task",
        )
    return Reason.INSUFFICIENT_GPU, "GPUs, CPU cores and memory are free, but not on the same nodes"


def hold(rooms: Sequence[NodeRoom], shape: Shape) -> None:
    """Hold the nodes nearest to fitting the shape, most tasks fitting now first, until they suffice when empty.

    None of them when all of them together would not suffice.
    """
    candidates = [
        (room, when_empty)
        for room in rooms
        if room.node.schedulable and (when_empty := tasks_when_empty(room.node, shape, sick_heal=False)) > 0
    ]
    if sum(when_empty for _, when_empty in candidates) < shape.count:
        return
    candidates.sort(
        key=lambda item: (
            -min(item[1], shape.count),
            -item[0].tasks(shape),
            _busy(item[0], shape),
            item[0].node.name,
        )
    )
    missing = shape.count
    for room, when_empty in candidates:
        if missing <= 0:
            return
        room.held = True
        missing -= when_empty


def _busy(room: NodeRoom, shape: Shape) -> int:
    """How many devices that the shape could use are held by others. The plan so far counts as others."""
    usable = sum(d.healthy and (not shape.models or d.model in shape.models) for d in room.node.devices)
    return usable - room.free_of(shape)
