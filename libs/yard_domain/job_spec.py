"""What a job asks for, as validated values. The document people write is `yard_events.job_document`."""

from dataclasses import dataclass, field
from enum import StrEnum


class Tier(StrEnum):
    INFERENCE = "inference"
    TRAINING = "training"
    DEV = "dev"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class TaskShape:
    """One task of a gang: whole devices of one node, with CPU cores and memory beside them."""

    count: int
    gpus: int
    gpu_models: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None

    @property
    def total_gpus(self) -> int:
        return self.count * self.gpus


@dataclass(frozen=True, slots=True)
class Run:
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    name: str
    tasks: TaskShape
    run: Run
    project: str = "default"
    queue: str = "default"
    tier: Tier = Tier.TRAINING
    priority: int = 0
    max_run_seconds: float | None = None
    max_attempts: int = 1
    labels: dict[str, str] = field(default_factory=dict[str, str])
