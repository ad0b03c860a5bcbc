"""Events of jobs: what people ask for, and the lifecycle for the world. Key: the job."""

from typing import ClassVar

from pydantic import AwareDatetime

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.job_document import JobDocument
from yard_events.part import Part

# --- yard.jobs.requests.v1: commands of people, key = job ------------------------------------------------------------


class SubmitJob(EventModel):
    TYPE: ClassVar[str] = "yard.jobs.submit.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: str
    project_id: str
    spec: JobDocument
    submitted_by: str
    submitted_at: AwareDatetime

    def key(self) -> str:
        return self.job_id


class CancelJob(EventModel):
    TYPE: ClassVar[str] = "yard.jobs.cancel.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: str
    project_id: str
    requested_by: str

    def key(self) -> str:
        return self.job_id


# --- yard.jobs.events.v1: the lifecycle for the world, key = job -----------------------------------------------------


class TaskPlace(Part):
    """Where one task of the current attempt runs, and how to reach its output."""

    task_rank: int
    allocation_id: str
    node: str
    device_uuids: list[str]
    agent_url: str = ""


class TaskEnd(Part):
    task_rank: int
    outcome: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None


class JobFact(EventModel):
    """What every lifecycle fact says. `reason` is a code of `yard_domain.reasons`; `detail` adds figures to it."""

    TOPIC: ClassVar[str] = topics.JOBS_EVENTS
    job_id: str
    project_id: str
    queue: str
    name: str
    state: str
    attempt: int
    at: AwareDatetime
    reason: str | None = None
    detail: str | None = None

    def key(self) -> str:
        return self.job_id


class JobQueued(JobFact):
    """Also sent again when the stated reason for waiting changes."""

    TYPE: ClassVar[str] = "yard.jobs.queued.v1"
    submitted_by: str | None = None
    submitted_at: AwareDatetime | None = None


class JobAdmitted(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.admitted.v1"


class JobStarting(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.starting.v1"
    tasks: list[TaskPlace]


class JobRunning(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.running.v1"


class JobCancelling(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.cancelling.v1"


class JobLost(JobFact):
    TYPE: ClassVar[str] = "yard.jobs.lost.v1"


class JobEnded(JobFact):
    exit_code: int | None = None
    tasks: list[TaskEnd] = []


class JobSucceeded(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.succeeded.v1"


class JobFailed(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.failed.v1"


class JobCancelled(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.cancelled.v1"


class JobExpired(JobEnded):
    TYPE: ClassVar[str] = "yard.jobs.expired.v1"
