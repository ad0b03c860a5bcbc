"""Every call of the HTTP API as a value. The sync and the async client differ only in how they carry it out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from yard_client import models

Answer = TypeVar("Answer")

JSON = "application/json"
YAML = "application/yaml"


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """`idempotent` calls may be sent again after a broken connection. `timeout_seconds` bounds the silence."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    idempotent: bool = True
    timeout_seconds: float | None = 30.0


def params(**values: str | int | float | bool | Sequence[str] | None) -> dict[str, str]:
    """Query parameters without the unset ones; lists become `a,b`, booleans `true` and `false`."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if value is None or value == []:
            continue
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, str):
            found[name] = value
        elif isinstance(value, Sequence):
            found[name] = ",".join(value)
        else:
            found[name] = str(value)
    return found


def _segment(value: str) -> str:
    return quote(value, safe="")


def _json(value: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"content-type": JSON}


# --- jobs ------------------------------------------------------------------------------------------------------------


def submit_job(
    document: Mapping[str, Any] | bytes, *, idempotency_key: str, content_type: str = YAML
) -> Call[models.Job]:
    """A document as bytes travels untouched, so that the server's word on a bad one is about what was written."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    kind = content_type if isinstance(document, bytes) else JSON
    return Call("POST", "/v1/jobs", content=content, headers={"content-type": kind, "idempotency-key": idempotency_key})


def list_jobs(query: Mapping[str, str]) -> Call[models.JobPage]:
    return Call("GET", "/v1/jobs", query)


def get_job(job_id: str) -> Call[models.Job]:
    return Call("GET", f"/v1/jobs/{_segment(job_id)}")


def cancel_job(job_id: str) -> Call[models.Job]:
    return Call("POST", f"/v1/jobs/{_segment(job_id)}/cancel")


def wait_job(job_id: str, timeout_seconds: float) -> Call[models.Job]:
    return Call(
        "GET",
        f"/v1/jobs/{_segment(job_id)}/wait",
        params(timeout=timeout_seconds),
        timeout_seconds=timeout_seconds + 20,
    )


def job_events(job_id: str, *, after: int | None, limit: int) -> Call[models.EventPage]:
    return Call("GET", f"/v1/jobs/{_segment(job_id)}/events", params(after=after, limit=limit))


def job_logs(job_id: str, *, task: int, attempt: int | None, offset: int, follow: bool) -> Call[bytes]:
    """A following read has no bound on silence: a task may compute for hours without a word."""
    query = params(task=task, attempt=attempt, offset=offset, follow=follow)
    # Compression would hold bytes back and shift offsets.
    headers = {"accept-encoding": "identity"}
    return Call(
        "GET", f"/v1/jobs/{_segment(job_id)}/logs", query, headers=headers, timeout_seconds=None if follow else 60.0
    )


def events(query: Mapping[str, str], *, after: int | None) -> Call[models.Event]:
    """The stream says `keep-alive` every 15 s, so longer silence means that the connection is dead."""
    headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
    if after is not None:
        headers["last-event-id"] = str(after)
    return Call("GET", "/v1/events", query, headers=headers, timeout_seconds=45.0)


# --- fleet, queues, projects, people ---------------------------------------------------------------------------------


def list_nodes() -> Call[models.NodePage]:
    return Call("GET", "/v1/nodes")


def cordon(node: str) -> Call[models.Node]:
    return Call("POST", f"/v1/nodes/{_segment(node)}/cordon")


def uncordon(node: str) -> Call[models.Node]:
    return Call("POST", f"/v1/nodes/{_segment(node)}/uncordon")


def list_queues() -> Call[models.QueuePage]:
    return Call("GET", "/v1/queues")


def set_queue(name: str, gpu_quota: int) -> Call[models.Queue]:
    content, headers = _json({"gpu_quota": gpu_quota})
    return Call("PUT", f"/v1/queues/{_segment(name)}", content=content, headers=headers)


def list_projects() -> Call[models.ProjectPage]:
    return Call("GET", "/v1/projects")


def create_project(name: str) -> Call[models.Project]:
    content, headers = _json({})
    return Call("PUT", f"/v1/projects/{_segment(name)}", content=content, headers=headers)


def list_tokens() -> Call[models.TokenPage]:
    return Call("GET", "/v1/tokens")


def create_token(name: str, role: str, projects: Sequence[str]) -> Call[models.Token]:
    """Not idempotent: each call makes another secret."""
    content, headers = _json({"name": name, "role": role, "projects": list(projects)})
    return Call("POST", "/v1/tokens", content=content, headers=headers, idempotent=False)


def revoke_token(token_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/tokens/{_segment(token_id)}")


def usage(query: Mapping[str, str]) -> Call[models.Usage]:
    return Call("GET", "/v1/usage", query)


# --- dead letters ----------------------------------------------------------------------------------------------------


def list_dead_letters(query: Mapping[str, str]) -> Call[models.DeadLetterPage]:
    return Call("GET", "/v1/dlq", query)


def show_dead_letter(service: str, topic: str, partition: int, offset: int) -> Call[models.ShownDeadLetter]:
    return Call("GET", _dead_letter(service, topic, partition, offset))


def retry_dead_letter(service: str, topic: str, partition: int, offset: int) -> Call[models.RetriedKey]:
    return Call("POST", f"{_dead_letter(service, topic, partition, offset)}/retry")


def retry_dead_letters(query: Mapping[str, str]) -> Call[models.RetriedServices]:
    return Call("POST", "/v1/dlq/retry", query)


def discard_dead_letter(service: str, topic: str, partition: int, offset: int) -> Call[models.DiscardedDeadLetter]:
    """Not sent again by itself: whoever loses an answer should look before discarding more."""
    return Call("DELETE", _dead_letter(service, topic, partition, offset), idempotent=False)


def _dead_letter(service: str, topic: str, partition: int, offset: int) -> str:
    return f"/v1/dlq/{_segment(service)}/{_segment(topic)}/{partition}/{offset}"


# --- the caller, the books -------------------------------------------------------------------------------------------


def me() -> Call[models.Me]:
    return Call("GET", "/v1/me")


def audit() -> Call[models.Audit]:
    """The server reads twice before it reports, so this may take a while."""
    return Call("GET", "/v1/audit", timeout_seconds=120.0)
