"""Events and output: what is followed rather than read once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import httpx
import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from yard_domain.errors import Retryable
from yard_domain.states import TERMINAL_JOB_STATES
from yard_gateway import read_model
from yard_gateway.agent_logs import OFFSET_HEADER, OpenLog
from yard_gateway.api.described import EVENT_PAGE, EVENT_STREAM, OUTPUT, answers
from yard_gateway.api.jobs import JSON
from yard_gateway.api.parameters import MAX_SEQ, JobId, Name, Parameters
from yard_gateway.api.parts import AllParts, Caller, Parts, visible_job
from yard_gateway.feed import Feed, Watch
from yard_gateway.principals import Principal
from yard_gateway.read_model import EventFilter
from yard_runtime.http import Problem

_log = structlog.get_logger("yard.gateway")

router = APIRouter(tags=["events and output"])


class Followed(StreamingResponse):
    """An answer that goes on: it holds one of the feed's places from its first byte to its end, however it ends.

    `close` is called then. A source that breaks off breaks off the answer: it must not look complete.
    """

    def __init__(
        self,
        feed: Feed,
        job_id: str | None,
        body: Callable[[Watch], AsyncIterator[bytes]],
        *,
        close: Callable[[], Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(iter(()), **options)
        self._feed = feed
        self._job_id = job_id
        self._body = body
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._feed.watch(self._job_id) as watch:
                self.body_iterator = self._body(watch)
                await self._send(scope, receive, send)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        finally:
            if self._close is not None:
                await self._close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except* httpx.TransportError as errors:
            _log.warning("output broke off", job_id=self._job_id, error=str(errors.exceptions[0]))


class JobEventsParameters(Parameters):
    after: int = Field(0, ge=0, le=MAX_SEQ, description="Only events with a larger seq.")
    limit: int = Field(200, ge=1, le=1000)


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="What happened to a job",
    responses=answers({200: EVENT_PAGE}, 401, 404, 422, 503),
)
async def job_events(
    parts: AllParts, principal: Caller, job_id: str, query: Annotated[JobEventsParameters, Query()]
) -> Response:
    await visible_job(parts, principal, job_id)
    page = await read_model.read_events(parts.reads, EventFilter(job_id=job_id), after=query.after, limit=query.limit)
    content = b'{"items":[' + b",".join(read_model.event_json(row) for row in page.events) + b"]}"
    return Response(content, media_type=JSON)


class EventStreamParameters(Parameters):
    after: int | None = Field(None, ge=0, le=MAX_SEQ, description="Resume after this seq; `Last-Event-ID` goes first.")
    project: Name | None = None
    job: JobId | None = None
    type: str | None = Field(
        None, max_length=512, pattern="^[a-z0-9._,]+$", description="One or more event types, separated by commas."
    )


@router.get(
    "/v1/events",
    summary="Follow all events",
    response_class=StreamingResponse,
    responses=answers({200: EVENT_STREAM}, 401, 404, 410, 422, 503),
)
async def follow_events(
    request: Request, parts: AllParts, principal: Caller, query: Annotated[EventStreamParameters, Query()]
) -> Response:
    """Server-sent events, each with its number as id: `Last-Event-ID` resumes without a gap. Without a position it
    starts with what happens from now on."""
    if query.job is not None:
        await visible_job(parts, principal, query.job)
    after = await _position(parts, request, query.after)
    wanted = EventFilter(
        projects=principal.projects,
        project=query.project,
        job_id=query.job,
        types=query.type.split(",") if query.type else (),
    )
    return Followed(
        parts.feed,
        query.job,
        lambda watch: _event_stream(parts, wanted, after, watch),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _position(parts: Parts, request: Request, after: int | None) -> int:
    """Where to begin. Raises Problem 410 when what came next was forgotten, or the number was never given out."""
    header = request.headers.get("last-event-id")
    if header:
        if not header.isdecimal() or not header.isascii() or len(header) > 20 or int(header) > MAX_SEQ:
            message = "must be the id of an event"
            raise Problem(
                422,
                "Invalid request",
                f"Last-Event-ID {message}.",
                errors=[{"field": "Last-Event-ID", "message": message}],
            )
        after = int(header)
    first, last = await read_model.event_bounds(parts.reads)
    if after is None:
        return last
    if not first - 1 <= after <= last:
        raise Problem(
            410,
            "Gone",
            f"Events after {after} cannot be resumed: kept are {first} to {last}. Read the state of your jobs, "
            f"then resume with after={last}.",
            first=first,
            last=last,
        )
    return after


async def _event_stream(parts: Parts, wanted: EventFilter, after: int, watch: Watch) -> AsyncIterator[bytes]:
    """Read from the table by number, wait for a hint, read on."""
    limit = parts.settings.stream_page
    position = after
    yield b": connected\n\n"
    while not watch.stopping:
        try:
            page = await read_model.read_events(parts.reads, wanted, after=position, limit=limit)
        except Retryable:
            yield b": the database is away, waiting\n\n"
            await watch.wait(1.0)
            continue
        position = page.position
        if page.events:
            yield b"".join(_sse(row) for row in page.events)
        if len(page.events) < limit and not await watch.wait(parts.settings.keep_alive_seconds):
            yield b": keep-alive\n\n"


def _sse(row: Any) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row.seq, row.type.encode(), read_model.event_json(row))


class LogParameters(Parameters):
    task: int = Field(0, ge=0, le=1_000_000, description="Task rank.")
    attempt: int | None = Field(None, ge=1, le=1_000_000, description="Without it: the newest.")
    offset: int = Field(0, ge=0, le=MAX_SEQ, description="First byte.")
    follow: bool = Field(False, description="Wait for the start, then go on until the task has ended.")


@router.get(
    "/v1/jobs/{job_id}/logs",
    summary="The output of a task, byte for byte",
    response_class=StreamingResponse,
    responses=answers({200: OUTPUT}, 401, 404, 409, 422, 503),
)
async def logs(parts: AllParts, principal: Caller, job_id: str, query: Annotated[LogParameters, Query()]) -> Response:
    """Standard output and standard error as the task wrote them. While following a job that waits, the answer's headers
    come when the task starts."""
    log = await _open_log(parts, principal, job_id, query)
    return Followed(
        parts.feed,
        job_id,
        lambda _watch: log.chunks(),
        close=log.close,
        media_type="application/octet-stream",
        headers={OFFSET_HEADER: str(log.offset)},
    )


async def _open_log(parts: Parts, principal: Principal, job_id: str, query: LogParameters) -> OpenLog:
    with parts.feed.watch(job_id) as watch:
        while True:
            row = await visible_job(parts, principal, job_id)
            log = await _try_open(parts, row, query)
            if log is not None:
                return log
            waits = row.state not in TERMINAL_JOB_STATES and (query.attempt is None or query.attempt >= row.attempt)
            if not waits:
                raise Problem(404, "Not found", "This task has no output: it was not started, or was forgotten.")
            if not query.follow or watch.stopping:
                raise Problem(409, "Conflict", f"There is no output yet: the job is {row.state}.", state=row.state)
            await watch.wait(parts.settings.keep_alive_seconds)


async def _try_open(parts: Parts, row: Any, query: LogParameters) -> OpenLog | None:
    """None while nothing of this task is on a node."""
    places = read_model.places_of(row)
    count = read_model.task_count(row)
    if query.task >= count:
        message = f"this job has {count} task{'s' if count > 1 else ''}, numbered from 0"
        raise Problem(422, "Invalid request", f"task: {message}", errors=[{"field": "task", "message": message}])
    if query.attempt is not None:
        attempt = query.attempt
    elif query.follow and row.state not in TERMINAL_JOB_STATES:
        attempt = row.attempt  # the one that runs or will run, not the output of a failed one before it
    else:
        attempt = max((place["attempt"] for place in places), default=0)
    for place in places:
        if place["attempt"] == attempt and place["task_rank"] == query.task:
            return await parts.logs.open(
                agent_url=read_model.agents_of(row).get(place["node"], ""),
                node=place["node"],
                allocation_id=place["allocation_id"],
                offset=query.offset,
                follow=query.follow,
            )
    return None
