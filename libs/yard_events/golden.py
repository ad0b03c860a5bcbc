"""One golden event per type: what travels, to the byte, with fixed ids and times.

They stand in `schemas/golden/` for readers in other languages; those that were released are read by every later version
of this code. Together they tell of one job, a gang of two on one node, from its submission to its bill.
"""

import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from yard_domain.reasons import Reason
from yard_domain.states import JobState, NodeState, Outcome
from yard_events.base import EventModel, wrap
from yard_events.dead_letters import PARKED_TYPE, RESOLVED_TYPE, Origin
from yard_events.envelope import Envelope
from yard_events.job_document import JobDocument
from yard_events.registry import TOPICS, dead_letter_topic
from yard_events.types import (
    AllocationReleased,
    AttemptBlocked,
    AttemptExited,
    AttemptGranted,
    AttemptLost,
    AttemptRecovered,
    AttemptStarted,
    CancelJob,
    DecisionRecord,
    DeviceFacts,
    DevicesEmptied,
    GrantedAllocation,
    GrantedDevice,
    InventoryNode,
    JobAdmitted,
    JobCancelled,
    JobCancelling,
    JobExpired,
    JobFailed,
    JobLost,
    JobQueued,
    JobRunning,
    JobStarting,
    JobSucceeded,
    NodeRegistered,
    NodeReport,
    PlaceAttempt,
    PrepareTask,
    QueueState,
    ReportedAllocation,
    StartTask,
    StopAttempt,
    StopTask,
    SubmitJob,
    TaskEnd,
    TaskExited,
    TaskPlace,
    TaskReady,
    TaskStarted,
    UsageRecorded,
    WithdrawAttempt,
)

Model = TypeVar("Model", bound=EventModel)

_ID = "evt-01jq3z8m60{:016d}"
_BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
_JOB, _ATTEMPT = "job-01jq3z8m4v6t0c9r2x5n7w1k3e", "att-01jq3z8m5a0d4g8k2p6s1v5y9b"
_ALLOCATIONS = ("alloc-01jq3z8m5b2k8f4d6h1s9v3t7y", "alloc-01jq3z8m5b7n3r9w5a1c6e0g4j")
_DEVICES = ("GPU-5f1c0d7e-3b52-4d0c-9a56-1c2f6f0a8b11", "GPU-80ab4c21-77de-4b39-8f02-5d9e1a3c6b22")
_MODEL, _DEVICE_BYTES = "NVIDIA H100 80GB HBM3", 80 * 2**30
_NODE, _EPOCH, _AGENT = "node-1", "boot-7c1e:journal-3f9a", "http://10.0.0.11:7070"
_TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=golden"}
_DOCUMENT = JobDocument.model_validate(
    {
        "name": "train-llm",
        "project": "nlp",
        "queue": "research",
        "tier": "training",
        "priority": 10,
        "tasks": {"count": 2, "gpus": 1, "gpu_models": [_MODEL], "cpus": 8, "memory": "64GiB"},
        "run": {"command": ["python3", "train.py"], "env": {"EPOCHS": "3"}, "workdir": "/srv/train"},
        "limits": {"max_run_time": "12h"},
        "retry": {"max_attempts": 2},
        "labels": {"team": "nlp"},
    }
)
_JOB_OF: dict[str, object] = {"job_id": _JOB, "project_id": "nlp"}
_FACT = _JOB_OF | {"queue": "research", "name": "train-llm", "attempt": 1}
_POOL_OF = _JOB_OF | {"cluster": "local", "pool": "default", "attempt_id": _ATTEMPT}
_RENDEZVOUS: dict[str, object] = {"master_addr": "10.0.0.11", "master_port": 29_500}
_SHORT_OF_DEVICES: dict[str, object] = {"reason": Reason.INSUFFICIENT_GPU, "detail": "2 GPUs asked for, 1 free"}
_EXITED_WITH_3: dict[str, object] = {"reason": Reason.EXIT_CODE, "exit_code": 3, "detail": "rank 0 exited with 3"}
_DONE = TaskEnd(task_rank=0, outcome=Outcome.SUCCEEDED, reason=Reason.EXIT_CODE, exit_code=0)
_FAILED = TaskEnd(task_rank=0, outcome=Outcome.FAILED, reason=Reason.EXIT_CODE, exit_code=3)
_KILLED = TaskEnd(task_rank=1, outcome=Outcome.STOPPED, reason=Reason.GANG_MEMBER_FAILED, signal=15)
_DEVICE_FACTS = [
    DeviceFacts(uuid=uuid, index=index, model=_MODEL, memory_bytes=_DEVICE_BYTES, healthy=index == 0, detail=detail)
    for index, (uuid, detail) in enumerate(zip(_DEVICES, (None, "XID 79: fallen off the bus"), strict=True))
]
_NODE_OF: dict[str, object] = {
    "node": _NODE,
    "cluster": "local",
    "pool": "default",
    "boot_id": "boot-7c1e",
    "agent_url": _AGENT,
    "cpus": 64.0,
    "memory_bytes": 512 * 2**30,
    "devices": _DEVICE_FACTS,
    "labels": {"rack": "r7"},
}


def _at(seconds: float) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)


def golden_events() -> list[Envelope]:
    """One of each type, dead letters included, ordered by type."""
    return sorted([*map(_travelling, _events()), _parked(), _resolved()], key=lambda envelope: envelope.type)


def _number(event_type: str) -> int:
    """Of the type alone: one more type changes no other's golden event."""
    return zlib.crc32(event_type.encode())


def _travelling(event: EventModel) -> Envelope:
    writer = TOPICS[event.TOPIC].writer
    return wrap(
        event,
        event_id=_ID.format(_number(event.TYPE)),
        source=f"yard/agent/{_NODE}/journal-3f9a" if writer == "agent" else f"yard/{writer}",
        time=_at(0),
        correlation_id=_ID.format(0),
        causation_id=_ID.format(1),
        publish_seq=_number(event.TYPE),
        trace=_TRACE,
    )


_ORIGIN = Origin("yard.placement.requests.v1", 0, 4711)


def _parked() -> Envelope:
    """Placement met a request that lacks most of its fields."""
    about = {
        "yard_dlq_error": "yard.placement.place.v1 evt-1: 12 invalid fields",
        "yard_dlq_header_ce_id": "evt-1",
        "yard_dlq_header_ce_type": "yard.placement.place.v1",
    }
    return _dead_letter(PARKED_TYPE, b'{"cluster":"local","pool":"default"}', about)


def _resolved() -> Envelope:
    """Somebody gave that request up."""
    return _dead_letter(RESOLVED_TYPE, b'{"outcome":"discarded","discarded_by":"admin"}', _TRACE)


def _dead_letter(event_type: str, value: bytes, more: Mapping[str, str]) -> Envelope:
    return Envelope(
        topic=dead_letter_topic("placement"),
        key="local/default",
        id=_ID.format(_number(event_type)),
        type=event_type,
        source="yard/placement",
        subject="local/default",
        time=_at(0),
        value=value,
        publish_seq=_number(event_type),
        extra={**_ORIGIN.headers(), **more},
    )


def _events() -> Iterator[EventModel]:
    yield from _requests()
    yield from _lifecycle()
    yield from _placement_requests()
    yield from _decisions()
    yield from _node_commands()
    yield from _node_events()
    yield from _states()


def _make(kind: type[Model], /, *shared: Mapping[str, object], **fields: object) -> Model:
    return kind.model_validate({name: value for part in (*shared, fields) for name, value in part.items()})


def _requests() -> Iterator[EventModel]:
    yield _make(SubmitJob, _JOB_OF, spec=_DOCUMENT, submitted_by="ci", submitted_at=_at(0))
    yield _make(CancelJob, _JOB_OF, requested_by="alice")


def _lifecycle() -> Iterator[EventModel]:
    submitted = {"submitted_by": "ci", "submitted_at": _at(0)}
    yield _make(JobQueued, _FACT, _SHORT_OF_DEVICES, submitted, state=JobState.QUEUED, at=_at(1))
    yield _make(JobAdmitted, _FACT, state=JobState.ADMITTED, at=_at(2))
    places = [
        TaskPlace(task_rank=rank, allocation_id=allocation, node=_NODE, device_uuids=[device], agent_url=_AGENT)
        for rank, (allocation, device) in enumerate(zip(_ALLOCATIONS, _DEVICES, strict=True))
    ]
    yield _make(JobStarting, _FACT, state=JobState.STARTING, at=_at(3), tasks=places)
    yield _make(JobRunning, _FACT, state=JobState.RUNNING, at=_at(4.25))
    yield _make(JobCancelling, _FACT, state=JobState.CANCELLING, at=_at(5), reason=Reason.CANCELLED)
    yield _make(JobLost, _FACT, state=JobState.LOST, at=_at(6), reason=Reason.NODE_LOST, detail=_NODE)
    yield _make(JobSucceeded, _FACT, state=JobState.SUCCEEDED, at=_at(7), exit_code=0, tasks=[_DONE])
    yield _make(JobFailed, _FACT, _EXITED_WITH_3, state=JobState.FAILED, at=_at(7), tasks=[_FAILED, _KILLED])
    yield _make(JobCancelled, _FACT, state=JobState.CANCELLED, at=_at(8), reason=Reason.CANCELLED)
    yield _make(JobExpired, _FACT, state=JobState.EXPIRED, at=_at(9), reason=Reason.MAX_RUN_TIME)


def _placement_requests() -> Iterator[EventModel]:
    yield _make(
        PlaceAttempt,
        _POOL_OF,
        attempt=1,
        queue="research",
        name="train-llm",
        priority=10,
        submitted_at=_at(0),
        tasks=_DOCUMENT.tasks,
        run=_DOCUMENT.run,
        max_run_seconds=43_200.0,
    )
    yield _make(StopAttempt, _POOL_OF, reason=Reason.CANCELLED, grace_seconds=30.0)
    yield _make(WithdrawAttempt, _POOL_OF)


def _decisions() -> Iterator[EventModel]:
    of = {**_POOL_OF, "attempt": 1}
    allocations = [
        GrantedAllocation(
            allocation_id=allocation,
            task_rank=rank,
            node=_NODE,
            agent_url=_AGENT,
            devices=[GrantedDevice(uuid=device, model=_MODEL)],
        )
        for rank, (allocation, device) in enumerate(zip(_ALLOCATIONS, _DEVICES, strict=True))
    ]
    record = DecisionRecord(now=_at(3), seed=0, config_hash="9f2c", engine_version="1")
    yield _make(AttemptGranted, of, ledger_time=_at(3), queue="research", allocations=allocations, decision=record)
    yield _make(AttemptBlocked, of, _SHORT_OF_DEVICES, ledger_time=_at(1), hopeless=False)
    yield _make(AttemptStarted, of, ledger_time=_at(4.25))
    failed = {"outcome": Outcome.FAILED, "tasks": [_FAILED, _KILLED]}
    yield _make(AttemptExited, of, _EXITED_WITH_3, failed, ledger_time=_at(7))
    yield _make(AllocationReleased, of, ledger_time=_at(7.5), allocation_id=_ALLOCATIONS[0], granted_at=_at(3))
    yield _make(AttemptLost, of, ledger_time=_at(6), last_contact=_at(5.5), allocation_ids=_ALLOCATIONS)
    yield _make(AttemptRecovered, of, ledger_time=_at(6.5), allocation_ids=_ALLOCATIONS)


def _node_commands() -> Iterator[EventModel]:
    of = {"node": _NODE, "epoch": _EPOCH, "allocation_id": _ALLOCATIONS[0]}
    work = _JOB_OF | {
        "name": "train-llm",
        "attempt": 1,
        "attempt_id": _ATTEMPT,
        "task_rank": 0,
        "world_size": 2,
        "local_rank": 0,
        "local_world_size": 2,
        "device_uuids": [_DEVICES[0]],
        "run": _DOCUMENT.run,
        "cpus": 8.0,
        "memory_bytes": 64 * 2**30,
    }
    yield _make(PrepareTask, of, command_seq=1, work=work)
    yield _make(StartTask, of, _RENDEZVOUS, command_seq=2, work=work)
    yield _make(StopTask, of, command_seq=3, grace_seconds=30.0, reason=Reason.GANG_MEMBER_FAILED)


def _node_events() -> Iterator[EventModel]:
    of = {"node": _NODE, "allocation_id": _ALLOCATIONS[0]}
    agent = {"journal_id": "journal-3f9a", "epoch": _EPOCH, "advertise_addr": "10.0.0.11", "agent_version": "0.1.0"}
    known = ReportedAllocation(allocation_id=_ALLOCATIONS[0], command_seq=2, state="running")
    yield _make(NodeRegistered, _NODE_OF, agent, observed_at=_at(-60))
    yield _make(NodeReport, of, observed_at=_at(5), epoch=_EPOCH, allocations=[known])
    yield _make(TaskReady, of, _RENDEZVOUS, observed_at=_at(3.5))
    yield _make(TaskStarted, of, observed_at=_at(4), pid=4242)
    yield _make(TaskExited, of, _EXITED_WITH_3, observed_at=_at(7), outcome=Outcome.FAILED)
    yield _make(DevicesEmptied, of, observed_at=_at(7.5))


def _states() -> Iterator[EventModel]:
    yield QueueState(queue="research", gpu_quota=16, at=_at(-120))
    state = {"state": NodeState.READY, "cordoned": False, "generation": 1}
    yield _make(InventoryNode, _NODE_OF, state, last_contact=_at(5), at=_at(5))
    yield _make(
        UsageRecorded,
        _JOB_OF,
        line_id="line-01jq3z8m7c4f8h2m6q0t4w8z2d",
        queue="research",
        attempt=1,
        allocation_id=_ALLOCATIONS[0],
        model=_MODEL,
        devices=1,
        since=_at(3),
        until=_at(7.5),
        device_micros=4_500_000,
    )
