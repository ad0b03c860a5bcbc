"""What an agent must know to run one task, from the attempt and its allocation."""

from typing import Any

from yard_placement.ledger import Allocation, Attempt


def task_work(attempt: Attempt, allocation: Allocation) -> dict[str, Any]:
    """The `TaskWork` of an allocation, as JSON data. Local ranks count the tasks of the gang on the same node."""
    here = [other for other in attempt.allocations if other.node == allocation.node]
    return {
        "job_id": attempt.job_id,
        "project_id": attempt.project_id,
        "name": attempt.name,
        "attempt": attempt.attempt,
        "attempt_id": attempt.attempt_id,
        "task_rank": allocation.task_rank,
        "world_size": len(attempt.allocations),
        "local_rank": here.index(allocation),
        "local_world_size": len(here),
        "device_uuids": allocation.device_uuids,
        "run": attempt.spec["run"],
        "cpus": attempt.spec["tasks"].get("cpus"),
        "memory_bytes": attempt.spec["tasks"].get("memory"),
    }
