"""`yard queues`, `projects`, `tokens`, `me`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from yard_client.cli import session
from yard_client.cli.completion import queue_names
from yard_client.cli.output import (
    ItemFormat,
    ItemOutput,
    NamedFormat,
    NamedOutput,
    notice,
    write_json,
    write_table,
    write_text,
)
from yard_client.errors import Refused


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    SUBMITTER = "submitter"
    VIEWER = "viewer"


def register(app: typer.Typer) -> None:
    queues_app = typer.Typer(invoke_without_command=True)
    queues_app.callback()(queues)
    queues_app.command("set")(set_queue)
    app.add_typer(queues_app, name="queues")
    projects_app = typer.Typer(invoke_without_command=True)
    projects_app.callback()(projects)
    projects_app.command("create")(create_project)
    app.add_typer(projects_app, name="projects")
    tokens_app = typer.Typer(no_args_is_help=True, help="List, create and revoke the tokens of people and programs.")
    tokens_app.command("list")(list_tokens)
    tokens_app.command("create")(create_token)
    tokens_app.command("revoke")(revoke_token)
    app.add_typer(tokens_app, name="tokens")
    app.command("me")(me)


def queues(context: typer.Context, output: NamedOutput = NamedFormat.TABLE) -> None:
    """List queues with their quota and use, or set a quota.

    \b
    Examples:
      yard queues
      yard queues set training --gpu-quota 64
    """
    if context.invoked_subcommand is not None:
        return
    with session.connect() as client:
        found = client.queues()
    if output == NamedFormat.JSON:
        write_json({"items": found})
    elif output == NamedFormat.NAME:
        for queue in found:
            write_text(queue["name"])
    else:
        rows = [[q["name"], q["gpu_quota"], q["used_gpus"], q["queued_jobs"], q["running_jobs"]] for q in found]
        write_table(["QUEUE", "GPU QUOTA", "GPUS IN USE", "WAITING", "RUNNING"], rows)


def set_queue(
    name: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue's name.", autocompletion=queue_names)],
    gpu_quota: Annotated[int, typer.Option("--gpu-quota", min=0, help="GPUs that its jobs may hold together.")],
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Set a queue's GPU quota; a queue that does not exist is made.

    \b
    Example:
      yard queues set training --gpu-quota 64
    """
    with session.connect() as client:
        queue = client.set_queue(name, gpu_quota)
    if output == ItemFormat.JSON:
        write_json(queue)
    else:
        write_text(f"queue {queue['name']}: quota {queue['gpu_quota']} GPUs, {queue['used_gpus']} in use")


def projects(context: typer.Context, output: NamedOutput = NamedFormat.TABLE) -> None:
    """List projects, or create one.

    \b
    Examples:
      yard projects
      yard projects create vision
    """
    if context.invoked_subcommand is not None:
        return
    with session.connect() as client:
        found = client.projects()
    if output == NamedFormat.JSON:
        write_json({"items": found})
    elif output == NamedFormat.NAME:
        for project in found:
            write_text(project["name"])
    else:
        write_table(["PROJECT"], [[project["name"]] for project in found])


def create_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="The new project's name.")],
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Create a project; one that exists stays as it is.

    \b
    Example:
      yard projects create vision
    """
    with session.connect() as client:
        project = client.create_project(name)
    if output == ItemFormat.JSON:
        write_json(project)
    else:
        write_text(f"project {project['name']}")


def list_tokens(output: ItemOutput = ItemFormat.TABLE) -> None:
    """List tokens; the secrets themselves are never shown again.

    \b
    Example:
      yard tokens list
    """
    with session.connect() as client:
        found = client.tokens()
    if output == ItemFormat.JSON:
        write_json({"items": found})
        return
    rows = [[t["id"], t["name"], t["role"], t["projects"] or "all"] for t in found]
    write_table(["ID", "NAME", "ROLE", "PROJECTS"], rows)


def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")],
    role: Annotated[Role, typer.Option("--role", help="What the token may do.")] = Role.SUBMITTER,
    project: Annotated[list[str] | None, typer.Option("--project", help="For these projects; repeatable.")] = None,
    output: ItemOutput = ItemFormat.TABLE,
) -> None:
    """Create a token. It is printed once, on stdout, and stored nowhere in clear.

    \b
    Examples:
      yard tokens create alice --role submitter --project vision
      yard tokens create dashboards --role viewer --project vision --project speech
    """
    with session.connect() as client:
        token = client.create_token(name, role.value, project or [])
    if output == ItemFormat.JSON:
        write_json(token)
        return
    notice(f"token {token['id']} for {token['name']} ({token['role']}); keep it, it is shown only now")
    write_text(token.get("token", ""))


def revoke_token(
    reference: Annotated[str, typer.Argument(metavar="TOKEN", help="A token's id or name.")],
) -> None:
    """Revoke a token at once.

    \b
    Example:
      yard tokens revoke alice
    """
    with session.connect() as client:
        found = client.tokens()
        matches = [t for t in found if t["id"] == reference] or [t for t in found if t["name"] == reference]
        if len(matches) != 1:
            ids = ", ".join(token["id"] for token in matches)
            detail = f"several tokens are named {reference!r}: {ids}" if matches else f"no token is {reference!r}"
            raise Refused(404, "Not found", f"{detail}; `yard tokens list` lists them", {})
        client.revoke_token(matches[0]["id"])
    write_text(f"{matches[0]['id']} is revoked")


def me(output: ItemOutput = ItemFormat.TABLE) -> None:
    """Show who the configured token is, and what it may do.

    \b
    Example:
      yard me
    """
    with session.connect() as client:
        answer = client.me()
    if output == ItemFormat.JSON:
        write_json(answer)
        return
    projects_text = ", ".join(answer["projects"]) if answer["projects"] else "all"
    write_text(f"{answer['name']}: {answer['role']}, projects: {projects_text}")
