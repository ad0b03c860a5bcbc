"""From the pending set to grants: the engine decides, the ledger's compare-and-reserve has the last word."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from yard_domain.reasons import Reason
from yard_domain.states import AllocationState, AttemptState
from yard_engine import VERSION
from yard_engine.decide import Blocked, Placed, decide
from yard_engine.snapshot import Node, Pending, Shape
from yard_events.types import AttemptBlocked, AttemptGranted
from yard_placement.ledger import Allocation, Attempt, NodeFacts
from yard_placement.outbox import PREPARE, START, Outbox
from yard_placement.settings import PlacementSettings
from yard_placement.work import task_work


def shape_of(spec: dict[str, Any]) -> Shape:
    tasks = spec["tasks"]
    return Shape(
        count=tasks.get("count", 1),
        gpus=tasks.get("gpus", 1),
        models=frozenset(tasks.get("gpu_models", ())),
        cpus=tasks.get("cpus") or 0.0,
        memory_bytes=tasks.get("memory") or 0,
    )


def config_hash(settings: PlacementSettings) -> str:
    """Identifies the settings a decision was made under."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:16]


def place(
    pending: Sequence[Attempt], nodes: tuple[Node, ...], facts: dict[str, NodeFacts], outbox: Outbox, config: str
) -> tuple[list[Allocation], list[tuple[Attempt, Blocked]]]:
    """Grant what fits; returns the new allocations, still to be booked, and what is blocked and why."""
    by_id = {attempt.attempt_id: attempt for attempt in pending}
    plan = decide(nodes, [Pending(attempt.attempt_id, shape_of(attempt.spec)) for attempt in pending])
    models = {device.uuid: device.model for node in nodes for device in node.devices}
    granted: list[Allocation] = []
    for placed in plan.placed:
        granted.extend(_grant(by_id[placed.attempt_id], placed, facts, models, outbox, config))
    return granted, [(by_id[blocked.attempt_id], blocked) for blocked in plan.blocked]


def _grant(
    attempt: Attempt,
    placed: Placed,
    facts: dict[str, NodeFacts],
    models: dict[str, str],
    outbox: Outbox,
    config: str,
) -> list[Allocation]:
    shape = shape_of(attempt.spec)
    attempt.allocations = [
        Allocation(
            allocation_id=f"{attempt.attempt_id}.t{task.task_rank}",
            attempt_id=attempt.attempt_id,
            job_id=attempt.job_id,
            project_id=attempt.project_id,
            task_rank=task.task_rank,
            node=task.node,
            epoch=facts[task.node].epoch or "",
            device_uuids=list(task.device_uuids),
            cpus=shape.cpus,
            memory_bytes=shape.memory_bytes,
            state=AllocationState.GRANTED,
            command_seq=0,
            command_type="",
            command={},
            commanded_at=outbox.now,
            granted_at=outbox.now,
        )
        for task in placed.tasks
    ]
    time = outbox.decide(
        AttemptGranted,
        attempt,
        queue=attempt.queue,
        allocations=[_granted_data(allocation, facts, models) for allocation in attempt.allocations],
        decision={"now": outbox.now, "seed": 0, "config_hash": config, "engine_version": VERSION},
    )
    gang = len(attempt.allocations) > 1
    for allocation in attempt.allocations:
        allocation.granted_at = time
        outbox.command(allocation, PREPARE if gang else START, {"work": task_work(attempt, allocation)})
    attempt.state = AttemptState.PREPARING if gang else AttemptState.STARTING
    attempt.reason = None
    return attempt.allocations


def _granted_data(allocation: Allocation, facts: dict[str, NodeFacts], models: dict[str, str]) -> dict[str, Any]:
    return {
        "allocation_id": allocation.allocation_id,
        "task_rank": allocation.task_rank,
        "node": allocation.node,
        "agent_url": facts[allocation.node].agent_url,
        "devices": [{"uuid": uuid, "model": models[uuid]} for uuid in allocation.device_uuids],
    }


def tell_blocked(
    blocked: Sequence[tuple[Attempt, Blocked]], outbox: Outbox, notice_seconds: float
) -> tuple[list[Attempt], datetime | None]:
    """Say why an attempt waits, when the reason changed and the wait is worth an event.

    Returns the attempts that were told, and when the next one will be due to be.
    """
    told: list[Attempt] = []
    waits: list[float] = []
    for attempt, answer in blocked:
        if attempt.reason == answer.reason:
            continue
        wait = notice_seconds - (outbox.now - attempt.submitted_at).total_seconds()
        if wait > 0 and not answer.hopeless:
            waits.append(wait)
            continue
        attempt.reason = answer.reason
        outbox.decide(
            AttemptBlocked, attempt, reason=Reason(answer.reason), detail=answer.detail, hopeless=answer.hopeless
        )
        told.append(attempt)
    return told, _after(outbox.now, min(waits)) if waits else None


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=max(seconds, 0.05))
