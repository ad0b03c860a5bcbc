"""What an agent must know to run one task, from the attempt and its allocation."""

from yard_events.job_document import RunDocument
from yard_events.types import TaskWork
from yard_placement.ledger import Allocation, Attempt


def task_work(attempt: Attempt, allocation: Allocation) -> TaskWork:
    """Local ranks count the tasks of the gang on the same node.

    What is run was validated with the request, and may be large: it is not validated again.
    """
    here = [other.task_rank for other in attempt.allocations if other.node == allocation.node]
    tasks = attempt.spec["tasks"]
    return TaskWork(
        job_id=attempt.job_id,
        project_id=attempt.project_id,
        name=attempt.name,
        attempt=attempt.attempt,
        attempt_id=attempt.attempt_id,
        task_rank=allocation.task_rank,
        world_size=len(attempt.allocations),
        local_rank=here.index(allocation.task_rank),
        local_world_size=len(here),
        device_uuids=allocation.device_uuids,
        run=RunDocument.model_construct(**attempt.spec["run"]),
        cpus=tasks.get("cpus"),
        memory_bytes=tasks.get("memory"),
    )
