"""The environment of a task: the node's base, what the user set, and above both what gpuyard says."""

from collections.abc import Mapping

from yard_events.types import TaskWork

BASE_NAMES = ("PATH", "HOME", "LANG", "TMPDIR", "USER")


def task_environment(
    *,
    work: TaskWork,
    allocation_id: str,
    node: str,
    visible_devices: str,
    base: Mapping[str, str],
    master_addr: str | None = None,
    master_port: int | None = None,
    trace: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of the task; nothing else is inherited.

    `base` is the agent's own environment, of which only BASE_NAMES are taken; the user may set those anew, but none
    of gpuyard's. `visible_devices` is the driver's value. `YARD_ALLOCATION_ID` is also the mark by which the keeper
    finds a task's processes again. Without a rendezvous address MASTER_ADDR and MASTER_PORT are the user's to set.
    `trace` are the W3C headers that the process may continue, under the names that OpenTelemetry gives them in an
    environment; a job that says which trace it belongs to keeps that.
    """
    ours = {
        "CUDA_VISIBLE_DEVICES": visible_devices,
        "RANK": str(work.task_rank),
        "LOCAL_RANK": str(work.local_rank),
        "WORLD_SIZE": str(work.world_size),
        "LOCAL_WORLD_SIZE": str(work.local_world_size),
        "YARD_JOB_ID": work.job_id,
        "YARD_JOB_NAME": work.name,
        "YARD_PROJECT": work.project_id,
        "YARD_ATTEMPT": str(work.attempt),
        "YARD_ALLOCATION_ID": allocation_id,
        "YARD_TASK_RANK": str(work.task_rank),
        "YARD_NODE": node,
        "YARD_GPU_UUIDS": ",".join(work.device_uuids),
    }
    if master_addr is not None:
        ours["MASTER_ADDR"] = master_addr
    if master_port is not None:
        ours["MASTER_PORT"] = str(master_port)
    inherited = {name: base[name] for name in BASE_NAMES if name in base}
    # Both or none of the two: a state means nothing beside another trace's parent.
    if trace and "TRACEPARENT" not in work.run.env:
        inherited |= {name.upper(): value for name, value in trace.items()}
    return inherited | work.run.env | ours
