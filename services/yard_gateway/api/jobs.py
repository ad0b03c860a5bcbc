"""/v1/jobs: submit, look, list, cancel, wait."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import AfterValidator, Field

from yard_domain.names import is_name
from yard_domain.states import TERMINAL_JOB_STATES, JobState
from yard_events.job_document import JobDocument
from yard_events.types import CancelJob
from yard_gateway import read_model
from yard_gateway.api.described import JOB, JOB_PAGE, SUBMIT_BODY, SUBMIT_PARAMETERS, answers
from yard_gateway.api.parameters import Name, Parameters
from yard_gateway.api.parts import AllParts, Caller, Parts, parts_of, visible_job
from yard_gateway.principals import Principal, Role
from yard_gateway.read_model import JobFilter
from yard_gateway.request_body import parse, read_body, reader_for, validate
from yard_gateway.submissions import Accepted, KeyReused, Submission
from yard_obs.catalogue import JOB_ID
from yard_obs.tracing import annotate, current_trace
from yard_runtime.http import Problem

router = APIRouter(tags=["jobs"])

JSON = "application/json"
WRITERS = (Role.ADMIN, Role.OPERATOR, Role.SUBMITTER)
_KEY_RULE = "must be 1 to 255 printable ASCII characters"


@router.post(
    "/v1/jobs",
    summary="Submit a job",
    openapi_extra={"requestBody": SUBMIT_BODY, "parameters": SUBMIT_PARAMETERS},
    status_code=201,
    responses=answers({201: JOB, 200: JOB}, 401, 403, 408, 409, 413, 415, 422, 503),
)
async def submit(request: Request, principal: Caller) -> Response:
    """Store a job and start its way to a node. With `Idempotency-Key` a repeated call gives the same job (200)."""
    parts = parts_of(request)
    principal.require(*WRITERS)
    key = _idempotency_key(request)
    reader = reader_for(request, yaml=True)
    settings = parts.settings
    body = await read_body(request, limit=settings.max_body_bytes, timeout_seconds=settings.body_timeout_seconds)
    document = validate(JobDocument, await parse(body, reader))
    principal.require_submit(document.project)
    await parts.directory.require_project(document.project)
    await parts.directory.require_queue(document.queue)
    canonical = document.model_dump_json(exclude_none=True).encode()
    try:
        accepted = await parts.batcher.submit(Submission(document, canonical, principal.name, key, current_trace()))
    except KeyReused:
        message = "stands for another job document; use a new key for a new job"
        raise Problem(
            409, "Conflict", f"Idempotency-Key {message}.", errors=[{"field": "Idempotency-Key", "message": message}]
        ) from None
    annotate({JOB_ID: accepted.job_id})
    return await _accepted_response(parts, principal, accepted, document, canonical)


async def _accepted_response(
    parts: Parts, principal: Principal, accepted: Accepted, document: JobDocument, canonical: bytes
) -> Response:
    location = {"Location": f"/v1/jobs/{accepted.job_id}"}
    if accepted.submitted_at is not None:
        content = read_model.new_job_json(accepted.job_id, document, canonical, principal.name, accepted.submitted_at)
        return Response(content, 201, location, JSON)
    row = await visible_job(parts, principal, accepted.job_id)
    return Response(read_model.job_json(row, full=True), 200, location, JSON)


def _idempotency_key(request: Request) -> str | None:
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise Problem(
            422,
            "Invalid request",
            f"Idempotency-Key {_KEY_RULE}.",
            errors=[{"field": "Idempotency-Key", "message": _KEY_RULE}],
        )
    return key


def _states(value: str) -> str:
    known = [state.value for state in JobState]
    unknown = sorted(set(value.split(",")) - set(known))
    if unknown:
        raise ValueError(f"{', '.join(unknown)[:100]!r} is no job state; known: {', '.join(known)}")
    return value


def _label(value: str) -> str:
    key, equals, text = value.partition("=")
    if not equals or not is_name(key) or len(text) > 256 or "\0" in text:
        raise ValueError("must be key=value as in the job document's labels")
    return value


def _cursor(value: str) -> str:
    read_model.decode_cursor(value)
    return value


class JobListParameters(Parameters):
    project: Name | None = None
    queue: Name | None = None
    state: Annotated[str, AfterValidator(_states)] | None = Field(None, description="One or more, separated by commas.")
    name: Name | None = None
    label: list[Annotated[str, AfterValidator(_label)]] = Field(
        [], max_length=16, description="`key=value`; all match."
    )
    active: bool | None = Field(None, description="true: not ended; false: ended.")
    limit: int = Field(50, ge=1, le=500)
    cursor: Annotated[str, Field(max_length=64), AfterValidator(_cursor)] | None = None


@router.get("/v1/jobs", summary="List jobs, newest first", responses=answers({200: JOB_PAGE}, 401, 422, 503))
async def list_jobs(parts: AllParts, principal: Caller, query: Annotated[JobListParameters, Query()]) -> Response:
    wanted = JobFilter(
        project=query.project,
        queue=query.queue,
        states=query.state.split(",") if query.state else (),
        name=query.name,
        labels=dict(label.split("=", 1) for label in query.label),
        active=query.active,
    )
    before = read_model.decode_cursor(query.cursor) if query.cursor is not None else None
    rows, next_before = await read_model.list_jobs(parts.reads, principal, wanted, before=before, limit=query.limit)
    return Response(read_model.jobs_page_json(rows, next_before), media_type=JSON)


@router.get("/v1/jobs/{job_id}", summary="One job", responses=answers({200: JOB}, 401, 404, 503))
async def get_job(parts: AllParts, principal: Caller, job_id: str) -> Response:
    row = await visible_job(parts, principal, job_id)
    return Response(read_model.job_json(row, full=True), media_type=JSON)


async def _cancel(parts: Parts, principal: Principal, job_id: str) -> Response:
    """The request is stored and sent; admission decides what becomes of it, and the job's state follows."""
    row = await visible_job(parts, principal, job_id)
    principal.require(*WRITERS)
    if row.state in TERMINAL_JOB_STATES:
        raise Problem(409, "Conflict", f"The job has already ended: it is {row.state}.", state=row.state)
    annotate({JOB_ID: job_id})
    async with parts.store.unit_of_work() as uow:
        uow.emit(CancelJob(job_id=job_id, project_id=row.project, requested_by=principal.name))
    return Response(read_model.job_json(row, full=True), 202, media_type=JSON)


@router.delete(
    "/v1/jobs/{job_id}",
    summary="Cancel a job",
    status_code=202,
    responses=answers({202: JOB}, 401, 403, 404, 409, 503),
)
async def delete_job(parts: AllParts, principal: Caller, job_id: str) -> Response:
    return await _cancel(parts, principal, job_id)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    status_code=202,
    responses=answers({202: JOB}, 401, 403, 404, 409, 503),
)
async def cancel_job(parts: AllParts, principal: Caller, job_id: str) -> Response:
    return await _cancel(parts, principal, job_id)


class WaitParameters(Parameters):
    timeout: float = Field(30.0, ge=0, le=86_400, description="Seconds; the gateway waits at most its own limit.")


@router.get(
    "/v1/jobs/{job_id}/wait",
    summary="Wait for a job's end",
    responses=answers({200: JOB}, 401, 404, 422, 503),
)
async def wait_for_end(
    parts: AllParts, principal: Caller, job_id: str, query: Annotated[WaitParameters, Query()]
) -> Response:
    """Answers when the job has ended, or as it is after `timeout` seconds: look at `state` and call again."""
    seconds = min(query.timeout, parts.settings.max_wait_seconds)
    row = await _wait(parts, principal, job_id, parts.monotonic() + seconds)
    return Response(read_model.job_json(row, full=True), media_type=JSON)


async def _wait(parts: Parts, principal: Principal, job_id: str, deadline: float) -> Any:
    with parts.feed.watch(job_id) as watch:
        while True:
            row = await visible_job(parts, principal, job_id)
            left = deadline - parts.monotonic()
            if row.state in TERMINAL_JOB_STATES or left <= 0 or watch.stopping:
                return row
            # Looked at again after the keep-alive time even without news: another process may hold the consumer.
            await watch.wait(min(left, parts.settings.keep_alive_seconds))
