"""`yard run`, `submit`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

import typer

from yard_client.cli import session
from yard_client.cli.arguments import ProjectOption, QueueOption, pair
from yard_client.cli.documents import read_document
from yard_client.cli.output import NamedFormat, NamedOutput, notice, write_json_each, write_text
from yard_client.cli.to_the_end import follow_to_the_end, wait_to_the_end
from yard_client.errors import ClientError
from yard_client.models import Job

Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", " /--detach", " /-d", help="Stream the output, exit as the job does; or not."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Nothing on stderr but errors.")]
Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="The same key and job, sent again, give the same job, not a second one."),
]


def register(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
    app.command("submit")(submit)


def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command with its arguments, after `--`.")],
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs of each task (default 1).")] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="Tasks that start together (default 1).")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The job's name (default: the program's).")] = None,
    queue: QueueOption = None,
    project: ProjectOption = None,
    tier: Annotated[str | None, typer.Option("--tier", help="inference, training, dev or batch.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher goes first within the queue.")] = None,
    gpu_model: Annotated[list[str] | None, typer.Option("--gpu-model", help="Any of these models; repeatable.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", help="CPU cores of each task.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of each task, such as 16GiB.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE, or KEY for its value here; repeatable.")
    ] = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Where the command runs on the node.")] = None,
    max_run_time: Annotated[str | None, typer.Option("--max-run-time", help="Then it is stopped: 90s, 1h30m.")] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="Run again after a failure.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="KEY=VALUE; repeatable.")] = None,
    wait: Wait = False,
    quiet: Quiet = False,
    idempotency_key: Key = None,
    output: NamedOutput = NamedFormat.TABLE,
) -> None:
    """Run a command on GPUs. Without --wait it prints the job's id and returns.

    With --wait, stdout is the job's output, byte for byte (lines of a gang begin with `[rank] `), and the exit code
    is the job's: 128+n if signal n killed it, 1 if it was cancelled or could not run. Ctrl-C cancels the job; a
    second one leaves it. `--wait -o json` prints the ended job instead of its output.

    \b
    Examples:
      yard run --gpus 2 --wait -- python3 -c 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
      yard run --tasks 4 --gpus 8 --gpu-model H100 --queue training --max-run-time 12h -- torchrun train.py
      job=$(yard run --name sweep-1 -e SEED=1 -- python3 sweep.py) && yard logs -f $job
    """
    document = _without_unset(
        {
            "name": name or default_name(command[0]),
            "project": project, "queue": queue, "tier": tier, "priority": priority,
            "tasks": _without_unset(
                {"count": tasks, "gpus": gpus, "gpu_models": gpu_model or None, "cpus": cpus, "memory": memory}
            ),
            "run": _without_unset({"command": command, "env": _environment(env or []), "workdir": workdir}),
            "limits": _without_unset({"max_run_time": max_run_time}),
            "retry": _without_unset({"max_attempts": max_attempts}),
            "labels": dict(pair(text, "--label") for text in label or []),
        }
    )  # fmt: skip
    with session.connect() as client:
        job = client.submit(document, idempotency_key=idempotency_key)
    _after([job], wait=wait, quiet=quiet, output=output)


def submit(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Job documents, YAML or JSON; - is stdin.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: tasks.count=4, run.env.SEED=7; repeatable.")
    ] = None,
    wait: Wait = False,
    quiet: Quiet = False,
    idempotency_key: Key = None,
    output: NamedOutput = NamedFormat.TABLE,
) -> None:
    """Submit job documents. Prints the jobs' ids, or with --wait their output, as `yard run` does.

    \b
    Examples:
      yard submit examples/train.yaml
      yard submit --wait --set tasks.count=4 examples/train.yaml
      generate-job | yard submit -
      yard submit --idempotency-key nightly-2026-01-31 nightly.yaml
    """
    if idempotency_key is not None and len(files) > 1:
        raise typer.BadParameter("goes with one file: each job needs a key of its own", param_hint="--idempotency-key")
    documents = [read_document(file, settings or []) for file in files]
    jobs: list[Job] = []
    with session.connect() as client:
        for file, document in zip(files, documents, strict=True):
            try:
                jobs.append(
                    client.submit(document.value, idempotency_key=idempotency_key, content_type=document.content_type)
                )
            except ClientError:
                done = f"; submitted before it: {', '.join(job['id'] for job in jobs)}" if jobs else ""
                notice(f"{file} was not submitted{done}")
                raise
    _after(jobs, wait=wait, quiet=quiet, output=output)


def default_name(program: str) -> str:
    """A valid job name from a program's path."""
    name = re.sub(r"[^a-z0-9._-]+|\.\.+", "-", PurePosixPath(program).name.lower())[:63].strip("._-")
    return name or "job"


def _after(jobs: Sequence[Job], *, wait: bool, quiet: bool, output: NamedFormat) -> None:
    if not wait:
        if output == NamedFormat.JSON:
            write_json_each(jobs)
        else:
            for job in jobs:
                write_text(job["id"])
        return
    if output == NamedFormat.JSON:
        ended, code = wait_to_the_end(jobs)
        write_json_each(ended)
        raise typer.Exit(code)
    if not quiet:
        for job in jobs:
            notice(f"{job['id']} ({job['name']}) is submitted")
    raise typer.Exit(follow_to_the_end(jobs, quiet=quiet))


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in pairs:
        if "=" not in text and text in os.environ:
            found[text] = os.environ[text]
        elif "=" not in text:
            raise typer.BadParameter(f"{text!r} is not set here; give KEY=VALUE", param_hint="--env")
        else:
            key, value = pair(text, "--env")
            found[key] = value
    return found


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}
