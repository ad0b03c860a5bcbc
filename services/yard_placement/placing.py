"""From the pending set to grants: the engine decides, the ledger's compare-and-reserve has the last word."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from yard_domain.states import AllocationState, AttemptState
from yard_engine import VERSION
from yard_engine.decide import Blocked, Placed
from yard_engine.snapshot import Shape
from yard_events.types import AttemptBlocked, AttemptGranted, DecisionRecord, GrantedAllocation, GrantedDevice
from yard_placement.ledger import Allocation, Attempt, Waiting
from yard_placement.outbox import PREPARE, START, Outbox
from yard_placement.pool import Pool
from yard_placement.settings import PlacementSettings


def shape_of(tasks: Mapping[str, Any]) -> Shape:
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


def grant(attempt: Attempt, placed: Placed, pool: Pool, outbox: Outbox, config: str) -> None:
    """Book the gang as a whole, in memory, with the first command of each task."""
    shape = shape_of(attempt.spec["tasks"])
    attempt.allocations = [
        Allocation(
            allocation_id=f"{attempt.attempt_id}.t{task.task_rank}",
            attempt_id=attempt.attempt_id,
            job_id=attempt.job_id,
            project_id=attempt.project_id,
            task_rank=task.task_rank,
            node=task.node,
            epoch=pool.facts[task.node].epoch or "",
            device_uuids=list(task.device_uuids),
            cpus=shape.cpus,
            memory_bytes=shape.memory_bytes,
            state=AllocationState.GRANTED,
            command_seq=0,
            command_type="",
            command={},
            commanded_at=outbox.now,
            granted_at=outbox.now,
            billed_since=outbox.now,
        )
        for task in placed.tasks
    ]
    time = outbox.decide(
        AttemptGranted,
        attempt,
        queue=attempt.queue,
        allocations=[_granted(allocation, pool) for allocation in attempt.allocations],
        decision=DecisionRecord(now=outbox.now, seed=0, config_hash=config, engine_version=VERSION),
    )
    for allocation in attempt.allocations:
        allocation.granted_at = allocation.billed_since = time
        outbox.command(attempt, allocation, PREPARE if attempt.gang else START)
    attempt.state = AttemptState.PREPARING if attempt.gang else AttemptState.STARTING
    attempt.reason = None


def _granted(allocation: Allocation, pool: Pool) -> GrantedAllocation:
    return GrantedAllocation(
        allocation_id=allocation.allocation_id,
        task_rank=allocation.task_rank,
        node=allocation.node,
        agent_url=pool.facts[allocation.node].agent_url,
        devices=[GrantedDevice(uuid=uuid, model=pool.models[uuid]) for uuid in allocation.device_uuids],
    )


def tell_blocked(
    blocked: Sequence[tuple[Waiting, Blocked]], outbox: Outbox, notice_seconds: float
) -> tuple[dict[str, str], datetime | None]:
    """Say why an attempt waits, when the reason changed and the wait is worth an event.

    Returns the new reason of each that was told, by attempt id, and when the next one will be due to be.
    """
    told: dict[str, str] = {}
    next_notice: datetime | None = None
    for attempt, answer in blocked:
        if attempt.reason == answer.reason:
            continue
        due = attempt.pending_since + timedelta(seconds=notice_seconds)
        if due > outbox.now and not answer.hopeless:
            next_notice = min(next_notice or due, due)
            continue
        told[attempt.attempt_id] = answer.reason.value
        outbox.decide(
            AttemptBlocked, attempt, reason=answer.reason.value, detail=answer.detail, hopeless=answer.hopeless
        )
    return told, next_notice
