"""Staying with submitted jobs until they have ended: with their output, or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yard_client.cli import session
from yard_client.cli.outcome import exit_status, has_ended, sentence
from yard_client.cli.output import OutputClosed, notice, write_bytes
from yard_client.errors import Refused, ServerFault, Unreachable

if TYPE_CHECKING:
    from yard_client.models import Job

LONG_POLL_SECONDS = 30.0


def wait_to_the_end(jobs: Sequence[Job]) -> tuple[list[Job], int]:
    """The ended jobs and the exit code they make."""
    ended: list[Job] = []
    with session.connect(following=True) as client:
        for job in jobs:
            while not has_ended(job):
                job = client.wait(job["id"], LONG_POLL_SECONDS)
            ended.append(job)
    return ended, _exit_code(ended)


def follow_to_the_end(jobs: Sequence[Job], *, quiet: bool) -> int:
    """Streams the jobs' output and gives the exit code that they make. Ctrl-C cancels them, twice leaves them."""
    import asyncio

    from yard_client.cli.interrupts import Detached

    names = ", ".join(job["id"] for job in jobs)
    rest = f"{names} goes on; `yard logs -f {jobs[0]['id']}` shows the output" if len(jobs) == 1 else f"{names} go on"
    try:
        ended, interrupted = asyncio.run(_follow_all(jobs, quiet=quiet))
    except Detached:
        notice(f"left; {rest}")
        return session.EXIT_INTERRUPTED
    except OutputClosed:
        notice(f"nobody reads the output any more; {rest}")
        raise
    except (Unreachable, ServerFault):
        notice(f"lost touch with the server; {rest}")
        raise
    for job in ended:
        if job["state"] != "succeeded":
            notice(f"{job['id']} {sentence(job)}")
    code = _exit_code(ended)
    return session.EXIT_INTERRUPTED if interrupted and code else code


async def _follow_all(jobs: Sequence[Job], *, quiet: bool) -> tuple[list[Job], bool]:
    import asyncio

    from yard_client import calls
    from yard_client.cli.follow import Listener, first_error, follow_job
    from yard_client.cli.interrupts import interruptible
    from yard_client.cli.job_output import JobOutput
    from yard_client.cli.waiting import Waiting

    waiting = Waiting(quiet=quiet)
    listener = Listener(on_job=waiting.on_job, on_notice=waiting.on_notice)

    def write(data: bytes) -> None:
        waiting.stop()
        write_bytes(data)

    def output_of(job: Job) -> JobOutput:
        several = len(jobs) > 1
        return JobOutput(write, prefixed=several or job["tasks"]["count"] > 1, label=job["name"] if several else "")

    async with session.connect_async() as client:

        async def cancel() -> None:
            waiting.stop()
            notice(
                f"cancelling {', '.join(job['id'] for job in jobs)}; Ctrl-C again leaves without waiting for the end"
            )
            for job in jobs:
                try:
                    await client.send(calls.cancel_job(job["id"]))
                except Refused as refusal:  # it has ended meanwhile
                    if refusal.status != 409:
                        raise

        async def follow() -> list[Job]:
            try:
                async with asyncio.TaskGroup() as group:
                    following = [group.create_task(follow_job(client, job, output_of(job), listener)) for job in jobs]
            except BaseExceptionGroup as errors:
                raise first_error(errors) from None
            return [one.result() for one in following]

        try:
            return await interruptible(follow(), cancel)
        finally:
            waiting.stop()


def _exit_code(jobs: Sequence[Job]) -> int:
    if len(jobs) == 1:
        return exit_status(jobs[0])
    return session.EXIT_FAILED if any(exit_status(job) for job in jobs) else 0
