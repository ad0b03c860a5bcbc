"""`yard events`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from yard_client.cli import session
from yard_client.cli.completion import job_references
from yard_client.cli.job_views import event_line
from yard_client.cli.output import ItemFormat, ItemOutput, write_json_line, write_text
from yard_client.cli.resolve import find_job

if TYPE_CHECKING:
    from yard_client.client import YardClient
    from yard_client.models import Event


def register(app: typer.Typer) -> None:
    app.command("events")(events)


def events(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new events until Ctrl-C.")] = False,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="JOB", help="Only this job's, from its beginning.", autocompletion=job_references
        ),
    ] = None,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Only this type, such as yard.jobs.running.v1.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project's.")] = None,
    since_id: Annotated[
        int | None, typer.Option("--since-id", min=0, help="Only events after this one; with -f it resumes there.")
    ] = None,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Show what happens, or what happened to a job.

    -f follows all that happens, --job gives the history of one job; both follow one. `-o json` prints one event a line.

    \b
    Examples:
      yard events -f
      yard events --job train-resnet
      yard events -f --type yard.jobs.failed.v1 -o json
      yard events -f --since-id 1234
    """
    if not follow and job is None:
        raise typer.BadParameter("say --job JOB for a job's history, or -f to follow what happens", param_hint="--job")
    with session.connect(following=follow) as client:
        job_id = find_job(client, job)["id"] if job is not None else None
        for event in _wanted(client, job_id, event_type, project, since_id, follow=follow):
            if output == ItemFormat.JSON:
                write_json_line(event)
            else:
                write_text(event_line(event))


def _wanted(
    client: YardClient,
    job_id: str | None,
    event_type: str | None,
    project: str | None,
    since_id: int | None,
    *,
    follow: bool,
) -> Iterator[Event]:
    after = since_id
    if job_id is not None:
        for event in client.job_events(job_id, after=since_id):
            after = event["seq"]
            if (event_type is None or event["type"] == event_type) and project in (None, event["project"]):
                yield event
    if follow:
        yield from client.events(project=project, job=job_id, type=event_type, after=after)
