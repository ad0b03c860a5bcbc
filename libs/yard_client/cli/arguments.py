"""Arguments and options that several commands take."""

from typing import Annotated

import typer

from yard_client.cli.completion import job_references, node_names, queue_names

JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="An id, the beginning of an id, or a name.", autocompletion=job_references),
]
JobArguments = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help="Ids, beginnings of ids, or names.", autocompletion=job_references),
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=node_names)]
QueueOption = Annotated[str | None, typer.Option("--queue", help="A queue's name.", autocompletion=queue_names)]
ProjectOption = Annotated[str | None, typer.Option("--project", help="A project's name.")]


def pair(text: str, option: str) -> tuple[str, str]:
    """`KEY=VALUE` as a pair. Raises a usage error that names the option."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=option)
    return key, value
