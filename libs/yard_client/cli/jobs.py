"""`yard ps`, `describe`, `wait`, `cancel`."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from yard_client.cli import session
from yard_client.cli.arguments import JobArgument, JobArguments, ProjectOption, QueueOption, pair
from yard_client.cli.job_views import description, job_table
from yard_client.cli.outcome import exit_status, has_ended, sentence
from yard_client.cli.output import (
    ItemFormat,
    ItemOutput,
    ListFormat,
    ListOutput,
    notice,
    write_json,
    write_json_each,
    write_text,
)
from yard_client.cli.resolve import find_job, find_jobs
from yard_client.errors import AmbiguousJob, NoSuchJob, Refused

WATCH_INTERVAL_SECONDS = 2.0
LONG_POLL_SECONDS = 30.0


def register(app: typer.Typer) -> None:
    app.command("ps")(ps)
    app.command("describe")(describe)
    app.command("wait")(wait)
    app.command("cancel")(cancel)


def ps(
    all_jobs: Annotated[bool, typer.Option("-a", "--all", help="Ended jobs too.")] = False,
    project: ProjectOption = None,
    queue: QueueOption = None,
    state: Annotated[list[str] | None, typer.Option("--state", help="Only these states; a,b or repeated.")] = None,
    label: Annotated[str | None, typer.Option("-l", "--label", help="Only jobs with this label, KEY=VALUE.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest first.")] = 200,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Go on and show changes until Ctrl-C.")] = False,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List jobs, newest first: those that wait or run, or all.

    \b
    Examples:
      yard ps
      yard ps -a --state failed,expired
      yard ps -w -l team=vision
      yard ps -a -o json | jq '.items[].id'
    """
    if watch and output in (ListFormat.JSON, ListFormat.NAME):
        raise typer.BadParameter(
            "goes with tables only; `yard events -f -o json` follows changes", param_hint="--watch"
        )
    if label is not None:
        pair(label, "--label")
    states = [part for value in state or [] for part in value.split(",") if part]
    query: dict[str, Any] = {
        "project": project, "queue": queue, "states": states or None, "label": label, "name": name,
        "active": None if all_jobs or states else True,
    }  # fmt: skip
    with session.connect(following=watch) as client:
        if watch:
            shown = ""
            while True:
                table = job_table(list(client.jobs(limit=limit, **query)), session.now(), output)
                if sys.stdout.isatty():
                    write_text(f"\x1b[H\x1b[2J{table}")
                elif table != shown:
                    write_text(f"{table}\n")
                shown = table
                time.sleep(WATCH_INTERVAL_SECONDS)
        jobs = list(client.jobs(limit=limit + 1, **query))
    more = len(jobs) > limit
    jobs = jobs[:limit]
    match output:
        case ListFormat.JSON:
            write_json({"items": jobs})
        case ListFormat.NAME:
            for job in jobs:
                write_text(job["id"])
        case _ if jobs:
            write_text(job_table(jobs, session.now(), output))
        case _:
            notice("no such jobs" if all_jobs or states else "nothing waits or runs; `yard ps -a` shows ended jobs too")
    if more:
        notice(f"there are more than {limit}; --limit shows more")


def describe(job: JobArgument, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Show one job and its history.

    Its state and why, where it runs, what it asked for, how its tasks ended, what happened.

    \b
    Examples:
      yard describe train-resnet
      yard describe job-01jq -o json
    """
    with session.connect() as client:
        found = find_job(client, job)
        if output == ItemFormat.JSON:
            write_json(found)
            return
        happened = list(client.job_events(found["id"]))
    write_text(description(found, happened, session.now()))


def wait(
    jobs: JobArguments,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds to wait at most; then exit code 124.")
    ] = None,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Wait until jobs have ended. Exit code 0 if all succeeded, 1 if any did not, 124 on timeout.

    \b
    Examples:
      yard wait train-resnet
      yard wait --timeout 600 job-01jq job-01jr
    """
    give_up_at = float("inf") if timeout is None else time.monotonic() + timeout
    ended: list[Any] = []
    with session.connect(following=True) as client:
        for found in find_jobs(client, jobs):
            while not has_ended(found):
                left = give_up_at - time.monotonic()
                if left <= 0:
                    notice(f"{found['id']} has not ended yet; it is {sentence(found)}")
                    raise typer.Exit(session.EXIT_TIMED_OUT)
                found = client.wait(found["id"], min(LONG_POLL_SECONDS, left))
            ended.append(found)
            if output == ItemFormat.TABLE:
                write_text(f"{found['id']} {sentence(found)}")
    if output == ItemFormat.JSON:
        write_json_each(ended)
    raise typer.Exit(session.EXIT_FAILED if any(exit_status(job) for job in ended) else 0)


def cancel(jobs: JobArguments, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Cancel jobs.

    Those that wait end at once; those that run get SIGTERM and, after a grace, SIGKILL.

    \b
    Examples:
      yard cancel train-resnet
      yard ps --queue batch -o name | xargs yard cancel
    """
    cancelled: list[Any] = []
    worst = 0
    with session.connect() as client:
        for reference in jobs:
            # One that has already ended must not keep the others alive.
            try:
                cancelled.append(client.cancel(find_job(client, reference)["id"]))
            except (Refused, NoSuchJob, AmbiguousJob) as error:
                notice(f"{reference}: {error}")
                worst = session.exit_code_of(error)
    if output == ItemFormat.JSON:
        write_json_each(cancelled)
    else:
        for job in cancelled:
            write_text(f"{job['id']} {sentence(job)}")
    raise typer.Exit(worst)
