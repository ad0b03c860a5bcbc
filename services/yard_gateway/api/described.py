"""How the API is described in OpenAPI: schemas, examples, and the problems that each route can answer.

Answers are built as bytes from rows, so FastAPI cannot derive them; a test compares these descriptions with real
answers.
"""

from collections.abc import Mapping
from typing import Any

from yard_domain.states import JobState
from yard_events.job_document import JobDocument

DESCRIPTION = (
    "One governed pool of GPUs: submit jobs, follow them, account for them. Times are ISO 8601 in UTC. Errors are "
    "RFC 9457 problems (application/problem+json); bad input names each field and what would be valid."
)
JSON = "application/json"
YAML = "application/yaml"

Described = dict[str, Any]

_TITLES = {
    401: "No token, or one that is unknown or revoked",
    403: "The caller's role does not allow this",
    404: "There is no such thing, or it is another project's",
    408: "The body did not arrive in time",
    409: "It contradicts what is there",
    410: "The events asked for were forgotten",
    413: "The body is larger than 256 KiB",
    415: "The body is of a type that is not accepted",
    422: "Bad input: `errors` names each field and what would be valid",
    503: "Something that is needed does not answer; `Retry-After` says when to try again",
}
_PROBLEM_EXAMPLES: dict[int, Described] = {
    422: {
        "type": "about:blank",
        "title": "Invalid request",
        "status": 422,
        "detail": "tasks.gpus: Input should be greater than or equal to 1",
        "errors": [{"field": "tasks.gpus", "message": "Input should be greater than or equal to 1"}],
    },
    404: {"type": "about:blank", "title": "Not found", "status": 404, "detail": "There is no job 'job-x'."},
}

JOB_EXAMPLE: Described = {
    "id": "job-01jq3z8m4v6t0c9r2x5n7w1k3e",
    "name": "train-llm",
    "project": "default",
    "queue": "default",
    "tier": "training",
    "priority": 0,
    "state": "running",
    "reason": None,
    "reason_text": None,
    "detail": None,
    "attempt": 1,
    "tasks": {"count": 1, "gpus": 2, "gpu_models": [], "cpus": None, "memory": None},
    "submitted_by": "admin",
    "submitted_at": "2026-03-01T09:00:00Z",
    "started_at": "2026-03-01T09:00:01.25Z",
    "ended_at": None,
    "exit_code": None,
    "labels": {"team": "nlp"},
    "parked": None,
    "places": [
        {
            "task_rank": 0,
            "allocation_id": "alloc-01jq3z8m5b2k8f4d6h1s9v3t7y",
            "node": "node-1",
            "device_uuids": ["GPU-5f1c", "GPU-80ab"],
            "attempt": 1,
        }
    ],
    "task_ends": [],
}
_DOCUMENT_EXAMPLE: Described = {
    "name": "train-llm",
    "tasks": {"count": 1, "gpus": 2},
    "run": {"command": ["python3", "train.py"], "env": {"EPOCHS": "3"}},
    "limits": {"max_run_time": "12h"},
    "labels": {"team": "nlp"},
}
_YAML_EXAMPLE = """name: train-llm
tasks: {count: 1, gpus: 2}
run:
  command: [python3, train.py]
  env: {EPOCHS: "3"}
limits: {max_run_time: 12h}
labels: {team: nlp}
"""
_EVENT_EXAMPLE: Described = {
    "seq": 42,
    "type": "yard.jobs.running.v1",
    "time": "2026-03-01T09:00:01.3Z",
    "job_id": JOB_EXAMPLE["id"],
    "project": "default",
    "node": None,
    "data": {"job_id": JOB_EXAMPLE["id"], "state": "running", "attempt": 1},
}


def _described(text: str, schema: Described, example: Any, media: str = JSON) -> Described:
    return {"description": text, "content": {media: {"schema": schema, "example": example}}}


def _ref(name: str) -> Described:
    return {"$ref": f"#/components/schemas/{name}"}


def _items(schema: Described, **more: Described) -> Described:
    required = ["items", *more]
    return {
        "type": "object",
        "required": required,
        "properties": {"items": {"type": "array", "items": schema}} | dict(more),
    }


def _body(schema: Described, example: Any, *, required: bool = True) -> Described:
    return {"required": required, "content": {JSON: {"schema": schema, "example": example}}}


def _object(*texts: str, **others: Described) -> Described:
    """An object with these properties, all of them always there; `texts` are strings."""
    properties = {name: {"type": "string"} for name in texts} | others
    return {"type": "object", "required": sorted(properties), "properties": properties}


_OBJECT: Described = {"type": "object"}
_NULLABLE_TEXT: Described = {"type": ["string", "null"]}
_CURSOR: Described = {
    "type": ["string", "null"],
    "description": "Pass it as `cursor` to go on; null: this was the end.",
}

JOB = _described("The job", _ref("Job"), JOB_EXAMPLE | {"spec": _DOCUMENT_EXAMPLE})
JOB_PAGE = _described(
    "A page of jobs, without `spec`",
    _items(_ref("Job"), next_cursor=_CURSOR),
    {"items": [JOB_EXAMPLE], "next_cursor": None},
)
EVENT_PAGE = _described("Events, oldest first", _items(_ref("Event")), {"items": [_EVENT_EXAMPLE]})
EVENT_STREAM = _described(
    "Server-sent events; `: keep-alive` every 15 s",
    {"type": "string"},
    'id: 42\nevent: yard.jobs.running.v1\ndata: {"seq":42}\n\n',
    "text/event-stream",
)
OUTPUT: Described = {
    "description": "The bytes from `offset` on",
    "headers": {"X-Yard-Offset": {"description": "Offset of the first byte", "schema": {"type": "integer"}}},
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
_NODE_EXAMPLE: Described = {
    "name": "node-1",
    "cluster": "local",
    "pool": "default",
    "state": "ready",
    "cordoned": False,
    "cpus": 64,
    "cpus_used": 8,
    "devices": [{"uuid": "GPU-5f1c", "index": 0, "model": "H100", "healthy": True, "job_id": None, "dirty": False}],
}
NODE = _described("The node", _OBJECT, _NODE_EXAMPLE)
NODES = _described("The nodes", _items(_OBJECT), {"items": [_NODE_EXAMPLE]})
_QUEUE_EXAMPLE: Described = {
    "name": "default",
    "gpu_quota": 16,
    "used_gpus": 4,
    "queued_jobs": 2,
    "running_jobs": 3,
}
QUEUE = _described("The queue", _OBJECT, _QUEUE_EXAMPLE)
QUEUES = _described("The queues", _items(_OBJECT), {"items": [_QUEUE_EXAMPLE]})
QUEUE_BODY = _body(
    {
        "type": "object",
        "required": ["gpu_quota"],
        "additionalProperties": False,
        "properties": {"gpu_quota": {"type": "integer", "minimum": 0, "maximum": 1_000_000}},
    },
    {"gpu_quota": 16},
)
PROJECT = _described("The project", _OBJECT, {"name": "nlp"})
PROJECTS = _described("The projects", _items(_OBJECT), {"items": [{"name": "default"}]})
USAGE = _described(
    "GPU-seconds, as decimal strings exact to the microsecond",
    _items(_OBJECT, total_gpu_seconds={"type": "string"}, as_of={"type": "string", "format": "date-time"}),
    {
        "items": [{"project": "default", "gpu_seconds": "12.500000", "open_gpu_seconds": "3.000000", "jobs": 2}],
        "total_gpu_seconds": "12.500000",
        "as_of": "2026-03-01T09:00:00Z",
    },
)
AUDIT = _described(
    "What was checked and what was found",
    {"type": "object", "required": ["checked_at", "findings", "checks"]},
    {"checked_at": "2026-03-01T09:00:00Z", "findings": [], "checks": [{"id": "INV-1", "title": "…", "ok": True}]},
)
_TOKEN_SCHEMA: Described = {
    "type": "object",
    "required": ["name", "role"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "role": {"enum": ["admin", "operator", "submitter", "viewer"]},
        "projects": {"type": "array", "items": {"type": "string"}, "description": "For submitter and viewer only."},
    },
}
_TOKEN_EXAMPLE: Described = {"name": "ci", "role": "submitter", "projects": ["default"]}
TOKEN_BODY = _body(_TOKEN_SCHEMA, _TOKEN_EXAMPLE)
NEW_TOKEN = _described(
    "The token, shown once",
    {"type": "object", "required": ["id", "name", "role", "projects", "token"]},
    _TOKEN_EXAMPLE | {"id": "token-01jq3z8m4v6t0c9r2x5n7w1k3e", "token": "yard_…"},
)
TOKENS = _described("The live tokens", _items(_OBJECT), {"items": [_TOKEN_EXAMPLE | {"id": "token-…"}]})
ME = _described(
    "The caller; `projects` is null for roles that see all",
    {"type": "object", "required": ["name", "role", "projects"]},
    {"name": "admin", "role": "admin", "projects": None},
)
_LETTER_EXAMPLE: Described = {
    "service": "billing",
    "topic": "yard.placement.decisions.v1",
    "partition": 0,
    "offset": 4711,
    "key": "local/default",
    "type": "yard.placement.released.v1",
    "value_bytes": 18,
    "error": "KeyError: 'alloc-1'",
    "parked_at": "2026-03-01T09:00:00+00:00",
    "retry_requested_at": None,
}
_UNAVAILABLE: Described = {"type": "array", "items": _OBJECT, "description": "Services that did not answer."}
_COUNT: Described = {"type": "integer", "minimum": 0}
_LETTER = _object("service", "topic", "key", "type", partition=_COUNT, offset=_COUNT, error=_NULLABLE_TEXT)
_LETTER_OF_KEY = _object("service", "topic", "key", "type", partition=_COUNT, offset=_COUNT, behind=_COUNT)
DEAD_LETTERS = _described(
    "Dead letters; `error` is null for one that only queues behind another of its key",
    _items(_LETTER, total=_COUNT, unavailable=_UNAVAILABLE),
    {"items": [_LETTER_EXAMPLE], "total": 1, "unavailable": []},
)
DEAD_LETTER = _described(
    "The dead letter; `behind`: how many of its key queue behind it",
    _object("service", "topic", "key", "type", "value", "value_encoding", behind=_COUNT, headers=_OBJECT),
    _LETTER_EXAMPLE | {"headers": {}, "behind": 0, "value": '{"released":true}', "value_encoding": "utf-8"},
)
DISCARDED_LETTER = _described("What was discarded", _LETTER_OF_KEY, _LETTER_EXAMPLE | {"behind": 0})
KEY_REQUESTED = _described(
    "How many records of the key will be tried",
    _object("service", "key", records=_COUNT),
    {"service": "billing", "key": "local/default", "records": 3},
)
DEAD_LETTERS_REQUESTED = _described(
    "How many records will be tried",
    _items(_object("service", records=_COUNT), unavailable=_UNAVAILABLE),
    {"items": [{"service": "billing", "records": 3}], "unavailable": []},
)
SUBMIT_BODY: Described = {
    "required": True,
    "content": {
        JSON: {"schema": _ref("JobDocument"), "example": _DOCUMENT_EXAMPLE},
        YAML: {"schema": _ref("JobDocument"), "example": _YAML_EXAMPLE},
    },
}
SUBMIT_PARAMETERS: list[Described] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "1 to 255 printable ASCII characters. The same key and document: the same job. Kept for 7 days.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
]


def answers(good: Mapping[int, Described], *problems: int) -> dict[int | str, Described]:
    """The `responses` of a route: what it answers, and the problems it can end in."""
    found: dict[int | str, Described] = {**good}
    for status in problems:
        example = _PROBLEM_EXAMPLES.get(status, {"type": "about:blank", "title": _TITLES[status], "status": status})
        found[status] = _described(_TITLES[status], _ref("Problem"), example, "application/problem+json")
    return found


def schemas() -> Described:
    """The components that routes refer to."""
    document = JobDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    parts: Described = document.pop("$defs")
    # These are written as text by people and validated to numbers, which the model's own schema cannot say.
    parts["TasksDocument"]["properties"]["memory"] = {
        "anyOf": [{"type": "integer"}, {"type": "string", "examples": ["64GiB"]}, {"type": "null"}],
        "default": None,
    }
    parts["LimitsDocument"]["properties"]["max_run_time"] = {
        "anyOf": [{"type": "number"}, {"type": "string", "examples": ["1h30m"]}, {"type": "null"}],
        "default": None,
    }
    return parts | {
        "JobDocument": document,
        "Job": _job_schema(),
        "Event": _event_schema(),
        "Problem": _problem_schema(),
    }


def _job_schema() -> Described:
    properties: Described = {
        name: {"type": "string"} for name in ("id", "name", "project", "queue", "tier", "submitted_by")
    }
    properties |= {name: {"type": "integer"} for name in ("priority", "attempt")}
    properties |= dict.fromkeys(("reason", "reason_text", "detail"), _NULLABLE_TEXT)
    properties |= {
        "state": {"enum": [state.value for state in JobState]},
        "tasks": _ref("TasksDocument"),
        "submitted_at": {"type": "string", "format": "date-time"},
        "started_at": {"type": ["string", "null"], "format": "date-time"},
        "ended_at": {"type": ["string", "null"], "format": "date-time"},
        "exit_code": {"type": ["integer", "null"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "parked": {
            "type": ["object", "null"],
            "description": "An event about the job that a service could not handle, until it is retried or discarded: "
            "service, topic, partition, offset, error, since, and how many records of the job are parked.",
        },
        "places": {"type": "array", "items": _OBJECT},
        "task_ends": {"type": "array", "items": _OBJECT},
    }
    required = sorted(properties)
    return {"type": "object", "required": required, "properties": properties | {"spec": _ref("JobDocument")}}


def _event_schema() -> Described:
    properties: Described = {
        "seq": {"type": "integer"},
        "type": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "job_id": _NULLABLE_TEXT,
        "project": _NULLABLE_TEXT,
        "node": _NULLABLE_TEXT,
        "data": _OBJECT,
    }
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _problem_schema() -> Described:
    error = {"type": "object", "properties": {"field": {"type": "string"}, "message": {"type": "string"}}}
    properties: Described = {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "array", "items": error},
    }
    return {"type": "object", "required": ["type", "title", "status"], "properties": properties}
