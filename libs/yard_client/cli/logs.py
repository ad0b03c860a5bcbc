"""`yard logs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from yard_client.cli import session
from yard_client.cli.arguments import JobArgument
from yard_client.cli.job_output import JobOutput
from yard_client.cli.output import notice, write_bytes
from yard_client.cli.resolve import find_job

if TYPE_CHECKING:
    from yard_client.client import YardClient
    from yard_client.models import Job


def register(app: typer.Typer) -> None:
    app.command("logs")(logs)


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for the start and go on to the end.")] = False,
    task: Annotated[
        int | None, typer.Option("--task", min=0, help="Only this task of a gang, bytes as they are.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="This attempt; without it, the last.")] = None,
) -> None:
    """Print what a job's tasks wrote.

    Byte for byte for one task; with `[rank] ` before each line for a gang.

    \b
    Examples:
      yard logs train-resnet
      yard logs -f train-resnet
      yard logs --task 3 train-resnet > rank3.txt
    """
    with session.connect(following=follow) as client:
        found = find_job(client, job)
        ranks = range(found["tasks"]["count"]) if task is None else [task]
        output = JobOutput(write_bytes, prefixed=task is None and len(ranks) > 1)
        if not follow:
            _print(client, found, ranks, attempt, output)
            return
    _follow(found, None if task is None else [task], attempt, output)


def _print(client: YardClient, job: Job, ranks: Sequence[int], attempt: int | None, output: JobOutput) -> None:
    for rank in ranks:
        sink = output.task(rank)
        for chunk in client.logs(job["id"], task=rank, attempt=attempt):
            sink.feed(chunk)
        sink.end()


def _follow(job: Job, ranks: Sequence[int] | None, attempt: int | None, output: JobOutput) -> None:
    import asyncio

    from yard_client.cli.follow import Listener, follow_attempt, follow_job

    async def follow() -> None:
        listener = Listener(on_job=lambda _job: None, on_notice=notice)
        async with session.connect_async() as client:
            if attempt is None:
                await follow_job(client, job, output, listener, ranks=ranks)
            else:
                await follow_attempt(client, job, attempt, output, listener, ranks)

    asyncio.run(follow())
