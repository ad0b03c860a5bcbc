"""Events of jobs: what people ask for, and the lifecycle for the world. Key: the job."""

from typing import Annotated, ClassVar

from pydantic import AwareDatetime, Field

from yard_events import registry as topics
from yard_events.base import EventModel
from yard_events.fields import (
    AgentUrl,
    AllocationId,
    Attempt,
    Caller,
    Detail,
    DeviceUuids,
    EventTime,
    ExitCode,
    JobId,
    JobName,
    JobStateCode,
    MaybeReasonCode,
    NodeName,
    OutcomeCode,
    ProjectId,
    QueueName,
    ReasonCode,
    SignalNumber,
    TaskRank,
)
from yard_events.job_document import JobDocument
from yard_events.part import Part

# --- yard.jobs.requests.v1: commands of people, key = job ------------------------------------------------------------


class SubmitJob(EventModel):
    """Somebody submitted a job; the gateway stored it and promised to pass it on."""

    TYPE: ClassVar[str] = "yard.jobs.submit.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: JobId
    project_id: ProjectId
    spec: JobDocument
    submitted_by: Caller
    submitted_at: EventTime

    def key(self) -> str:
        return self.job_id


class CancelJob(EventModel):
    """Somebody asks for the end of a job, whatever state it is in."""

    TYPE: ClassVar[str] = "yard.jobs.cancel.v1"
    TOPIC: ClassVar[str] = topics.JOBS_REQUESTS
    job_id: JobId
    project_id: ProjectId
    requested_by: Caller

    def key(self) -> str:
        return self.job_id


# --- yard.jobs.events.v1: the lifecycle for the world, key = job -----------------------------------------------------


class TaskPlace(Part):
    """Where one task of the current attempt runs, and how to reach its output."""

    task_rank: TaskRank
    allocation_id: AllocationId
    node: NodeName
    device_uuids: DeviceUuids
    agent_url: AgentUrl = ""


class TaskEnd(Part):
    """How one task of the attempt ended."""

    task_rank: TaskRank
    outcome: OutcomeCode
    reason: ReasonCode
    exit_code: ExitCode = None
    signal: SignalNumber = None
    detail: Detail = None


class JobFact(EventModel):
    """What every lifecycle fact says. `reason` is a code of `yard_domain.reasons`; `detail` adds figures to it."""

    TOPIC: ClassVar[str] = topics.JOBS_EVENTS
    job_id: JobId
    project_id: ProjectId
    queue: QueueName
    name: JobName
    state: JobStateCode
    attempt: Attempt
    at: EventTime
    reason: MaybeReasonCode = None
    detail: Detail = None

    def key(self) -> str:
        return self.job_id


class JobQueued(JobFact):
    """Also sent again when the stated reason for waiting changes."""

    TYPE: ClassVar[str] = "yard.jobs.queued.v1"
    submitted_by: Annotated[str | None, Field(description="The name of the token it was submitted with.")] = None
    submitted_at: Annotated[AwareDatetime | None, Field(description="When the gateway stored it.")] = None


class JobAdmitted(JobFact):
    """Its queue has room for it: it may run as soon as devices are free."""

    TYPE: ClassVar[str] = "yard.jobs.admitted.v1"


class JobStarting(JobFact):
    """Its devices are booked, and its tasks are being started on their nodes."""

    TYPE: ClassVar[str] = "yard.jobs.starting.v1"
    tasks: Annotated[list[TaskPlace], Field(description="Where each task runs, by rank.")]


class JobRunning(JobFact):
    """Every task of the attempt runs; also sent when a lost job was found running again."""

    TYPE: ClassVar[str] = "yard.jobs.running.v1"


class JobCancelling(JobFact):
    """Its tasks were told to end, on request."""

    TYPE: ClassVar[str] = "yard.jobs.cancelling.v1"


class JobLost(JobFact):
    """A node of it is silent. It may be found running again, run anew, or fail."""

    TYPE: ClassVar[str] = "yard.jobs.lost.v1"


class JobEnded(JobFact):
    """The last fact of a job."""

    exit_code: ExitCode = None
    tasks: Annotated[list[TaskEnd], Field(description="How each task of the last attempt ended, by rank.")] = []


class JobSucceeded(JobEnded):
    """Every task exited with 0."""

    TYPE: ClassVar[str] = "yard.jobs.succeeded.v1"


class JobFailed(JobEnded):
    """It cannot run, or its last attempt failed."""

    TYPE: ClassVar[str] = "yard.jobs.failed.v1"


class JobCancelled(JobEnded):
    """It ended on request; nothing of it runs any more."""

    TYPE: ClassVar[str] = "yard.jobs.cancelled.v1"


class JobExpired(JobEnded):
    """It was stopped at its maximum run time."""

    TYPE: ClassVar[str] = "yard.jobs.expired.v1"
