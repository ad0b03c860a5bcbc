"""Fields that many events share, with the words that integrators read in `schemas/`.

Codes (states, outcomes, reasons) are open text in events: a later version may add one, and a reader that meets a code
it does not know shows it as it is.
"""

from typing import Annotated

from pydantic import AwareDatetime, Field

from yard_domain.states import JobState, NodeState, Outcome


def _one_of(codes: type[JobState] | type[NodeState] | type[Outcome]) -> str:
    return ", ".join(code.value for code in codes)


JobId = Annotated[str, Field(description="The job, `job-` and 26 characters that sort by time of submission.")]
JobName = Annotated[str, Field(description="What its author called the job; not unique.")]
ProjectId = Annotated[str, Field(description="The project, which pays.")]
QueueName = Annotated[str, Field(description="The queue that the job waits in.")]
Caller = Annotated[str, Field(description="The name of the caller's token.")]

JobStateCode = Annotated[str, Field(description=f"State of the job from this event on: {_one_of(JobState)}.")]
NodeStateCode = Annotated[str, Field(description=f"State of the node: {_one_of(NodeState)}.")]
OutcomeCode = Annotated[str, Field(description=f"How it ended: {_one_of(Outcome)}.")]
_REASON = "Why, as a code; `yard_domain.reasons` has a sentence for each."
ReasonCode = Annotated[str, Field(description=_REASON)]
MaybeReasonCode = Annotated[str | None, Field(description=_REASON)]
Detail = Annotated[str | None, Field(description="Figures and names that belong to the reason, for people.")]
ExitCode = Annotated[int | None, Field(description="What the command exited with; absent when a signal ended it.")]
SignalNumber = Annotated[int | None, Field(description="The signal that ended it; absent when it exited.")]
GraceSeconds = Annotated[float, Field(description="Seconds between SIGTERM and SIGKILL.")]

Attempt = Annotated[int, Field(description="Which run of the job, from 1; 0 before the first.")]
AttemptId = Annotated[str, Field(description="The attempt, in all of the fleet.")]
AllocationId = Annotated[str, Field(description="The allocation: what one task of an attempt holds.")]
AllocationIds = Annotated[list[str], Field(description="The attempt's allocations that this is about.")]
TaskRank = Annotated[int, Field(description="Number of the task in its gang, from 0.")]

ClusterName = Annotated[str, Field(description="The cluster.")]
PoolName = Annotated[str, Field(description="The pool: nodes that are scheduled together.")]
NodeName = Annotated[str, Field(description="The node.")]
BootId = Annotated[str, Field(description="Changes whenever the node boots.")]
Epoch = Annotated[str, Field(description="The node's boot and its agent's journal in one.")]
AgentUrl = Annotated[str, Field(description="Where the node's agent answers HTTP, for gpuyard itself.")]
DeviceUuid = Annotated[str, Field(description="The device, as its driver names it.")]
DeviceModel = Annotated[str, Field(description="The model of the device, as its driver names it.")]
DeviceUuids = Annotated[list[str], Field(description="The devices, as their drivers name them.")]
MemoryBytes = Annotated[int, Field(description="Memory in bytes.")]
CpuCores = Annotated[float, Field(description="CPU cores.")]
Labels = Annotated[dict[str, str], Field(description="Labels that an operator gave the node.")]
Simulated = Annotated[bool, Field(description="True for a node without real devices.")]

LedgerTime = Annotated[AwareDatetime, Field(description="Placement's clock: strictly increasing within a pool.")]
EventTime = Annotated[AwareDatetime, Field(description="When it happened, in UTC.")]
AgentTime = Annotated[AwareDatetime, Field(description="The agent's clock: it informs, it does not decide.")]
CommandSeq = Annotated[int, Field(description="Rises with every command for the allocation.")]
MasterAddress = Annotated[str | None, Field(description="Where rank 0 of the gang listens.")]
MasterPort = Annotated[int | None, Field(description="Port at which rank 0 of the gang listens.")]
