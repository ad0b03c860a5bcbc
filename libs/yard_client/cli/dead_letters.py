"""`yard dlq`: what services could not handle, and what is to become of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from yard_client.cli import session
from yard_client.cli.output import (
    ItemFormat,
    ItemOutput,
    moment,
    notice,
    printable,
    table_text,
    write_json,
    write_table,
    write_text,
)
from yard_domain.quantities import format_bytes
from yard_events.registry import CONSUMING_SERVICES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yard_client.models import DeadLetter, ShownDeadLetter, Unavailable

_RECORD = re.compile(r"([^/@]+)/(\d{1,10})@(\d{1,19})")


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int


def _services(incomplete: str) -> list[str]:
    return [name for name in CONSUMING_SERVICES if name.startswith(incomplete)]


ServiceArgument = Annotated[
    str, typer.Argument(metavar="SERVICE", help="The service that parked it.", autocompletion=_services)
]
RecordArgument = Annotated[
    str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="The record, as `yard dlq list` names it.")
]
ServiceOption = Annotated[
    str | None, typer.Option("--service", help="Only what this service parked.", autocompletion=_services)
]
KeyOption = Annotated[str | None, typer.Option("--key", help="Only records of this key: a job, a pool, a node.")]


def register(app: typer.Typer) -> None:
    dlq_app = typer.Typer(
        no_args_is_help=True, help="List, show, retry and discard events that services could not handle (dead letters)."
    )
    dlq_app.command("list")(list_letters)
    dlq_app.command("show")(show)
    dlq_app.command("retry")(retry)
    dlq_app.command("discard")(discard)
    app.add_typer(dlq_app, name="dlq")


def list_letters(
    service: ServiceOption = None,
    key: KeyOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many, the oldest first.")] = 100,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """List events that services could not handle, oldest first.

    One that failed holds back later ones of its key: those say `queued behind`. Exit code 3 when a service does not
    answer; the others' are listed all the same.

    \b
    Examples:
      yard dlq list
      yard dlq list --service billing
      yard dlq list --key job-01jq3z8m4v6t0c9r2x5n7w1k3e -o json
    """
    with session.connect() as client:
        page = client.dead_letters(service=service, key=key, limit=limit)
    if output == ItemFormat.JSON:
        write_json(page)
    elif page["items"]:
        rows = [
            [letter["service"], name(letter), letter["key"], moment(letter["parked_at"]), _error(letter)]
            for letter in page["items"]
        ]
        write_table(["SERVICE", "RECORD", "KEY", "SINCE (UTC)", "ERROR"], rows)
    elif not page["unavailable"]:
        notice("nothing is parked")
    if page["total"] > len(page["items"]):
        notice(f"there are {page['total']}; --limit shows more")
    _end(page["unavailable"])


def show(service: ServiceArgument, record: RecordArgument, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Show one event that a service could not handle: the error, its headers and its value.

    \b
    Examples:
      yard dlq show billing yard.placement.decisions.v1/0@4711
      yard dlq show billing yard.placement.decisions.v1/0@4711 -o json | jq -r .value
    """
    with session.connect() as client:
        letter = client.dead_letter(service, *_parsed(record))
    if output == ItemFormat.JSON:
        write_json(letter)
    else:
        write_text(_description(letter))


def retry(
    service: Annotated[
        str | None, typer.Argument(metavar="SERVICE", help="The service that parked it.", autocompletion=_services)
    ] = None,
    record: Annotated[str | None, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="A record of the key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is parked.")] = False,
    only: ServiceOption = None,
    key: KeyOption = None,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Have a service try an event's key again: all of it, in order.

    It happens inside of the service, a moment later. What fails again stays parked, with its new error.

    \b
    Examples:
      yard dlq retry billing yard.placement.decisions.v1/0@4711
      yard dlq retry --all
      yard dlq retry --all --service billing
      yard dlq retry --all --key job-01jq3z8m4v6t0c9r2x5n7w1k3e
    """
    if everything:
        if service is not None:
            raise typer.BadParameter("goes without a record; --service and --key narrow it", param_hint="--all")
        _retry_all(only, key, output)
        return
    if service is None or record is None:
        raise typer.BadParameter("name one, as SERVICE TOPIC/PARTITION@OFFSET, or give --all", param_hint="record")
    if only is not None or key is not None:
        raise typer.BadParameter("go with --all only", param_hint="--service and --key")
    with session.connect() as client:
        answer = client.retry_dead_letter(service, *_parsed(record))
    if output == ItemFormat.JSON:
        write_json(answer)
    else:
        write_text(f"{service} tries {_events(answer['records'])} of {printable(answer['key'])} again")


def _retry_all(service: str | None, key: str | None, output: ItemFormat) -> None:
    with session.connect() as client:
        answer = client.retry_dead_letters(service=service, key=key)
    if output == ItemFormat.JSON:
        write_json(answer)
    else:
        wanted = [item for item in answer["items"] if item["records"]]
        for item in wanted:
            write_text(f"{item['service']} tries {_events(item['records'])} again")
        if not wanted and not answer["unavailable"]:
            notice("nothing is parked")
    _end(answer["unavailable"])


def discard(
    service: ServiceArgument,
    record: RecordArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Give an event up for good: what it should have done never happens. Later ones of its key are tried.

    Says what is lost and asks first. Rather mend the cause and retry.

    \b
    Examples:
      yard dlq discard billing yard.placement.decisions.v1/0@4711
      yard dlq discard --yes billing yard.placement.decisions.v1/0@4711
    """
    place = _parsed(record)
    with session.connect() as client:
        if not yes:
            notice(_loss(client.dead_letter(service, *place)))
            if not typer.confirm("Discard it?", err=True):
                notice("nothing was discarded")
                raise typer.Exit(session.EXIT_FAILED)
        gone = client.discard_dead_letter(service, *place)
    if output == ItemFormat.JSON:
        write_json(gone)
        return
    behind = f"; {_events(gone['behind'])} behind it will be tried" if gone["behind"] else ""
    write_text(f"{service} discarded {name(gone)}{behind}")


def name(letter: DeadLetter) -> str:
    """As the commands take it."""
    return f"{letter['topic']}/{letter['partition']}@{letter['offset']}"


def _parsed(text: str) -> Record:
    found = _RECORD.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not of the form TOPIC/PARTITION@OFFSET, as in yard.jobs.events.v1/0@42", param_hint="record"
        )
    return Record(found[1], int(found[2]), int(found[3]))


def _error(letter: DeadLetter) -> str:
    if letter["retry_requested_at"] is not None:
        return "(being tried again) " + (letter["error"] or "")
    return letter["error"] or "queued behind"


def _events(count: int) -> str:
    return f"{count} event" if count == 1 else f"{count} events"


def _loss(letter: ShownDeadLetter) -> str:
    behind = f", and {_events(letter['behind'])} behind it will be tried" if letter["behind"] else ""
    return (
        f"{letter['type']} of {letter['key']}, {format_bytes(letter['value_bytes'])}, was never handled by "
        f"{letter['service']}: its effect there is lost for good, its bytes stay in the topics as long as those keep "
        f"them{behind}."
    )


def _description(letter: ShownDeadLetter) -> str:
    facts = [
        ("Record", name(letter)),
        ("Service", letter["service"]),
        ("Key", letter["key"]),
        ("Type", letter["type"]),
        ("Parked", f"{moment(letter['parked_at'])} UTC"),
        ("Error", letter["error"] or "none of its own: it queues behind an earlier one of its key"),
        ("Behind it", _events(letter["behind"])),
        ("Retry", "requested" if letter["retry_requested_at"] is not None else ""),
    ]
    lines = [f"{key + ':':<11}{printable(value)}" for key, value in facts if value]
    headers = table_text(["HEADER", "VALUE"], sorted(letter["headers"].items()), indent=2)
    encoding = "" if letter["value_encoding"] == "utf-8" else f", {letter['value_encoding']}"
    value = f"Value ({format_bytes(letter['value_bytes'])}{encoding}):\n  {printable(letter['value'])}"
    return "\n".join([*lines, "Headers:", headers, value])


def _end(unavailable: Sequence[Unavailable]) -> None:
    for one in unavailable:
        notice(f"{one['service']}: {one['detail']}")
    if unavailable:
        raise typer.Exit(session.EXIT_UNREACHABLE)
