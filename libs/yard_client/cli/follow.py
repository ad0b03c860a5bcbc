"""Following a job to its end: its state by long polls, the output of all its tasks by streams, attempt by attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yard_client import calls
from yard_client.cli.job_output import JobOutput, TaskOutput
from yard_client.cli.outcome import has_ended
from yard_client.errors import Refused, ServerFault, Unreachable

if TYPE_CHECKING:
    from yard_client.aio import AsyncYardClient
    from yard_client.models import Job

FIRST_POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 5.0
# After a job's end its streams end by themselves once they are drained. One that gives nothing for so long is given up.
DRAIN_SECONDS = 10.0
NEVER_STARTED_DRAIN_SECONDS = 1.0
# A stream is a connection here and one at the gateway.
MOST_STREAMS = 256
NO_OUTPUT_STATUS = frozenset({404, 409})


@dataclass(frozen=True, slots=True)
class Listener:
    """What happens meanwhile, for people: each state seen, and sentences about the output."""

    on_job: Callable[[Job], None]
    on_notice: Callable[[str], None]


class Observed:
    """The last known state of a job; the streams wait here for the next one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._next = asyncio.Event()

    @property
    def ended(self) -> bool:
        return has_ended(self.job)

    def update(self, job: Job) -> None:
        self.job = job
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._next.wait()

    async def change(self) -> None:
        if not self.ended:
            await self._next.wait()


async def follow_job(
    client: AsyncYardClient, job: Job, output: JobOutput, listener: Listener, *, ranks: Sequence[int] | None = None
) -> Job:
    """Writes what the job's tasks print until it has ended, and gives its last state.

    A broken connection is taken up again where it broke. Raises Refused, ServerFault or Unreachable.
    """
    observed = Observed(job)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(client, observed, listener))
            group.create_task(_all_attempts(client, observed, output, listener, _followed(job, ranks, listener)))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return observed.job


async def follow_attempt(
    client: AsyncYardClient, job: Job, attempt: int, output: JobOutput, listener: Listener, ranks: Sequence[int] | None
) -> None:
    """As follow_job, for one attempt only."""
    observed = Observed(job)
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(client, observed, listener))
            await _attempt(client, observed, output, listener, _followed(job, ranks, listener), attempt)
            watching.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


def first_error(errors: BaseExceptionGroup) -> BaseException:
    """What a task group failed of: the error that ended it, not the cancellations that followed."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]


def _followed(job: Job, ranks: Sequence[int] | None, listener: Listener) -> Sequence[int]:
    count = job["tasks"]["count"]
    if ranks is None and count > MOST_STREAMS:
        listener.on_notice(f"showing tasks 0 to {MOST_STREAMS - 1} of {count}; `yard logs --task N` shows another")
    return ranks if ranks is not None else range(min(count, MOST_STREAMS))


async def _watch(client: AsyncYardClient, observed: Observed, listener: Listener) -> None:
    poll_seconds = FIRST_POLL_SECONDS
    listener.on_job(observed.job)
    while not observed.ended:
        job = await client.send(calls.wait_job(observed.job["id"], poll_seconds))
        poll_seconds = min(poll_seconds * 2, LONGEST_POLL_SECONDS)
        observed.update(job)
        listener.on_job(job)


async def _all_attempts(
    client: AsyncYardClient, observed: Observed, output: JobOutput, listener: Listener, ranks: Sequence[int]
) -> None:
    attempt = max(1, observed.job["attempt"])
    while True:
        await _attempt(client, observed, output, listener, ranks, attempt)
        await observed.until(lambda: observed.ended or observed.job["attempt"] > attempt)  # noqa: B023 - awaited here
        if observed.job["attempt"] <= attempt:
            return
        attempt += 1
        listener.on_notice(f"attempt {attempt} of {observed.job['id']} follows")


async def _attempt(
    client: AsyncYardClient,
    observed: Observed,
    output: JobOutput,
    listener: Listener,
    ranks: Sequence[int],
    attempt: int,
) -> None:
    """All tasks' output of one attempt, until every stream has ended or gives nothing any more."""

    def over() -> bool:
        return observed.ended or observed.job["attempt"] > attempt

    tasks = [output.task(rank) for rank in ranks]
    async with asyncio.TaskGroup() as group:
        streams: set[asyncio.Task[None]] = {
            group.create_task(_task(client, observed, task, rank, attempt))
            for rank, task in zip(ranks, tasks, strict=True)
        }
        ending = group.create_task(observed.until(over))
        while streams and not ending.done():
            await asyncio.wait({ending, *streams}, return_when=asyncio.FIRST_COMPLETED)
            streams = {stream for stream in streams if not stream.done()}
        ending.cancel()
        started = observed.job["started_at"] is not None
        grace = DRAIN_SECONDS if started else NEVER_STARTED_DRAIN_SECONDS
        written = output.bytes_written
        while streams:
            done, streams = await asyncio.wait(streams, timeout=grace)
            if not done and output.bytes_written == written:
                if started:
                    listener.on_notice("the end of the output did not arrive; `yard logs` may have it later")
                for stream in streams:
                    stream.cancel()
                break
            written = output.bytes_written
    for task in tasks:
        task.end()


async def _task(client: AsyncYardClient, observed: Observed, task: TaskOutput, rank: int, attempt: int) -> None:
    """One task's output; where there is none yet, it is asked for again when the job has moved on."""
    while True:
        last_try = observed.ended or observed.job["attempt"] > attempt
        try:
            stream = client.logs(observed.job["id"], task=rank, attempt=attempt, offset=task.bytes_read, follow=True)
            async for chunk in stream:
                task.feed(chunk)
            return
        except Refused as error:
            if error.status not in NO_OUTPUT_STATUS:
                raise
        except (ServerFault, Unreachable):
            # A silent node keeps its output to itself for now; the watch says when the gateway itself is away.
            pass
        if last_try:
            return
        await observed.change()
