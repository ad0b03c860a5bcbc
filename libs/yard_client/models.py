"""The API's objects as they travel: plain dictionaries with typed keys.

They stay dictionaries so that what the client prints or hands on is exactly what the server said, fields of newer
servers included. Times are ISO 8601 in UTC.
"""

from typing import Any, NotRequired, TypedDict


class TaskShape(TypedDict):
    count: int
    gpus: int
    gpu_models: list[str]
    cpus: float | None
    memory: int | None


class Place(TypedDict):
    """Where one task of an attempt runs."""

    task_rank: int
    allocation_id: str
    node: str
    device_uuids: list[str]
    attempt: int


class TaskEnd(TypedDict):
    task_rank: int
    outcome: str
    reason: str
    exit_code: int | None
    signal: int | None
    detail: str | None


class Parked(TypedDict):
    """An event about a job that a service could not handle; `error` is null for one that queues behind another."""

    service: str
    topic: str
    partition: int
    offset: int
    error: str | None
    since: str
    records: int


class Job(TypedDict):
    """`spec` is missing in lists. `reason_text` is the human sentence of `reason`; `detail` adds figures."""

    id: str
    name: str
    project: str
    queue: str
    tier: str
    priority: int
    state: str
    reason: str | None
    reason_text: str | None
    detail: str | None
    attempt: int
    tasks: TaskShape
    spec: NotRequired[dict[str, Any]]
    submitted_by: str
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    labels: dict[str, str]
    parked: NotRequired[Parked | None]
    places: list[Place]
    task_ends: list[TaskEnd]


class JobPage(TypedDict):
    items: list[Job]
    next_cursor: str | None


class Event(TypedDict):
    """One fact of the log, as people may see it. `seq` orders events and resumes a stream."""

    seq: int
    type: str
    time: str
    job_id: str | None
    project: str | None
    node: str | None
    data: dict[str, Any]


class EventPage(TypedDict):
    items: list[Event]


class Device(TypedDict):
    uuid: str
    index: int
    model: str
    memory_bytes: int
    healthy: bool
    detail: str | None
    allocation_id: str | None
    job_id: str | None
    dirty: bool


class Node(TypedDict):
    name: str
    cluster: str
    pool: str
    state: str
    cordoned: bool
    generation: int
    boot_id: str
    cpus: float
    memory_bytes: int
    cpus_used: float
    memory_used_bytes: int
    labels: dict[str, str]
    simulated: bool
    last_contact: str | None
    devices: list[Device]


class NodePage(TypedDict):
    items: list[Node]


class Queue(TypedDict):
    name: str
    gpu_quota: int
    used_gpus: int
    queued_jobs: int
    running_jobs: int


class QueuePage(TypedDict):
    items: list[Queue]


class Project(TypedDict):
    name: str


class ProjectPage(TypedDict):
    items: list[Project]


class Token(TypedDict):
    """`token`, the secret itself, is there only in the answer that created it."""

    id: str
    name: str
    role: str
    projects: list[str] | None
    token: NotRequired[str]


class TokenPage(TypedDict):
    items: list[Token]


class UsageLine(TypedDict):
    """One group of usage; which of the four keys is there depends on `group_by`. Seconds are exact decimals."""

    project: NotRequired[str]
    queue: NotRequired[str]
    job: NotRequired[str]
    model: NotRequired[str]
    gpu_seconds: str
    open_gpu_seconds: str
    jobs: int


class Usage(TypedDict):
    items: list[UsageLine]
    total_gpu_seconds: str
    as_of: str


class Me(TypedDict):
    name: str
    role: str
    projects: list[str] | None


class Check(TypedDict):
    id: str
    title: str
    ok: bool


class Finding(TypedDict):
    invariant: str
    message: str
    rows: list[dict[str, Any]]


class Audit(TypedDict):
    checked_at: str
    findings: list[Finding]
    checks: list[Check]


class DeadLetter(TypedDict):
    """A record that a service could not handle. `error` is null for one that only queues behind another of its key."""

    service: str
    topic: str
    partition: int
    offset: int
    key: str
    type: str
    value_bytes: int
    error: str | None
    parked_at: str
    retry_requested_at: str | None


class ShownDeadLetter(DeadLetter):
    """`value` is text, or base64, as `value_encoding` says (`utf-8`, `base64`). `behind`: of its key, after it."""

    headers: dict[str, str]
    behind: int
    value: str
    value_encoding: str


class DiscardedDeadLetter(DeadLetter):
    behind: int


class Unavailable(TypedDict):
    service: str
    detail: str


class DeadLetterPage(TypedDict):
    """The oldest, of `total`, of the services that are not `unavailable`."""

    items: list[DeadLetter]
    total: int
    unavailable: list[Unavailable]


class RetriedKey(TypedDict):
    service: str
    key: str
    records: int


class RetriedService(TypedDict):
    service: str
    records: int


class RetriedServices(TypedDict):
    items: list[RetriedService]
    unavailable: list[Unavailable]
