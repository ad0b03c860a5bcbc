"""`yard usage`, `audit`: what the books say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import typer

from yard_client.cli import session
from yard_client.cli.arguments import ProjectOption, QueueOption
from yard_client.cli.completion import job_references
from yard_client.cli.output import ItemFormat, ItemOutput, moment, notice, write_json, write_json_line, write_table
from yard_client.cli.resolve import find_job
from yard_domain.quantities import parse_duration_seconds


class GroupBy(StrEnum):
    PROJECT = "project"
    QUEUE = "queue"
    JOB = "job"
    MODEL = "model"


def register(app: typer.Typer) -> None:
    app.command("usage")(usage)
    app.command("audit")(audit)


def usage(
    by: Annotated[GroupBy, typer.Option("--by", help="One line per what.")] = GroupBy.PROJECT,
    project: ProjectOption = None,
    queue: QueueOption = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only this job's.", autocompletion=job_references)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="A time (ISO 8601), or so long ago: 90m, 24h, 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="As --since; without it, now.")] = None,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Show the GPU time that was granted.

    Exact to the microsecond; time of allocations that are still held is shown as open.

    \b
    Examples:
      yard usage
      yard usage --by job --project vision --since 24h
      yard usage --by model --since 2026-01-01 --until 2026-02-01
    """
    now = session.now()
    start, end = _instant(since, now, "--since"), _instant(until, now, "--until")
    with session.connect() as client:
        job_id = find_job(client, job)["id"] if job is not None else None
        answer = client.usage(group_by=by.value, project=project, queue=queue, job=job_id, since=start, until=end)
    if output == ItemFormat.JSON:
        write_json(answer)
        return
    rows: list[list[object]] = [
        [line.get(by.value), _hours(line["gpu_seconds"]), line["gpu_seconds"], line["open_gpu_seconds"], line["jobs"]]
        for line in answer["items"]
    ]
    total = answer["total_gpu_seconds"]
    rows.append(["total", _hours(total), total, "", ""])
    write_table([by.value.upper(), "GPU HOURS", "GPU SECONDS", "STILL OPEN", "JOBS"], rows)
    notice(f"as of {moment(answer['as_of'])} UTC")


def audit(output: ItemOutput = ItemFormat.TABLE) -> None:
    """Check the invariants on the live system. Exit code 1 if one does not hold, with the rows that prove it.

    \b
    Examples:
      yard audit
      yard audit -o json | jq .findings
    """
    with session.connect() as client:
        answer = client.audit()
    if output == ItemFormat.JSON:
        write_json(answer)
    else:
        rows = [[check["id"], "ok" if check["ok"] else "FOUND", check["title"]] for check in answer["checks"]]
        write_table(["CHECK", "RESULT", "WHAT"], rows)
        for finding in answer["findings"]:
            notice(f"{finding['invariant']}: {finding['message']}")
            for row in finding["rows"]:
                write_json_line(row)
        if not answer["findings"]:
            notice(f"{len(answer['checks'])} checks hold, as of {moment(answer['checked_at'])} UTC")
    raise typer.Exit(session.EXIT_FAILED if answer["findings"] else 0)


def _hours(seconds: str) -> str:
    return f"{Decimal(seconds) / 3600:.3f}"


def _instant(text: str | None, now: datetime, option: str) -> str | None:
    """An ISO time in UTC from a time or a duration before now. A time without a zone is UTC."""
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        try:
            instant = now - timedelta(seconds=parse_duration_seconds(text))
        except ValueError:
            raise typer.BadParameter(
                f"{text!r} is neither a time such as 2026-01-31T12:00 nor a duration such as 24h", param_hint=option
            ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
