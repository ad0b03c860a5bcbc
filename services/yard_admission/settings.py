"""Admission's settings: `YARD_ADMISSION__…`."""

from pydantic import Field, model_validator

from yard_domain.names import DEFAULT_CLUSTER, DEFAULT_POOL
from yard_events.registry import JOBS_REQUESTS, TOPICS
from yard_runtime.settings import ServiceSettings, service_config

MAX_GPU_QUOTA = 1_000_000


class AdmissionSettings(ServiceSettings):
    model_config = service_config("admission")

    cluster: str = DEFAULT_CLUSTER
    pool: str = DEFAULT_POOL
    """The one pool that work is sent to."""
    default_gpu_quota: int = Field(default=1024, ge=0, le=MAX_GPU_QUOTA)
    """Quota of the queue `default` when it is first made."""
    grace_seconds: float = Field(default=10.0, ge=0)
    """Between SIGTERM and SIGKILL when a job is cancelled or reaches its maximum run time."""
    admissions_per_cycle: int = Field(default=300, ge=1)
    queues_per_cycle: int = Field(default=16, ge=1)
    notice_seconds: float = Field(default=1.0, ge=0)
    """A wait for quota shorter than this is not worth an event."""
    notices_per_cycle: int = Field(default=300, ge=1)
    recheck_seconds: float = Field(default=60.0, gt=0)
    """When a job that no node could hold is tried again on an unchanged fleet; each time four times as late."""
    recheck_limit_seconds: float = Field(default=600.0, gt=0)
    keep_ended_seconds: float = 30 * 86_400.0

    @model_validator(mode="after")
    def _jobs_outlive_their_requests(self) -> "AdmissionSettings":
        if self.keep_ended_seconds <= TOPICS[JOBS_REQUESTS].retention_seconds:
            raise ValueError(f"keep_ended_seconds must be above the retention of {JOBS_REQUESTS}, or replays run again")
        return self
