"""The command `yard`. Start-up stays light: what a command needs is imported when it runs."""

from __future__ import annotations

import sys
from importlib import metadata

import typer

from yard_client.cli import about, accounts, admin, dead_letters, events, fleet, jobs, logs, session, submission
from yard_client.cli.output import OutputClosed
from yard_client.errors import ClientError

PLUGIN_GROUP = "gpuyard.cli"

HELP = """gpuyard: one pool of GPUs for all teams. Submit work, see where it runs and why it waits, read its output.

\b
Start here:
  yard run --gpus 2 --wait -- python3 train.py
  yard submit examples/train.yaml
  yard ps
  yard logs -f JOB

\b
Exit codes: 0 done, 1 the job failed or a check found something, 2 usage, 3 no server reached,
4 refused by the server, 124 a wait ran out of time. `--wait` exits as the job did.
The server and token come from YARD_URL and YARD_TOKEN, or the file that `yard config show` names."""


def build_app() -> typer.Typer:
    """All commands: the client's own and those of installed plug-ins.

    A plug-in is an entry point of the group `gpuyard.cli`: a function that takes the app and adds commands to it.
    """
    app = typer.Typer(
        help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )  # fmt: skip
    app.callback()(_root)
    for topic in (submission, jobs, logs, events, fleet, accounts, dead_letters, admin, about):
        topic.register(app)
    for entry in sorted(metadata.entry_points(group=PLUGIN_GROUP), key=lambda entry: entry.name):
        try:
            register = entry.load()
        except ModuleNotFoundError:
            # The role that brings these commands is not installed here, so they do not exist here.
            continue
        register(app)
    return app


def _root() -> None: ...


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and gives its exit code; expected errors become sentences on stderr."""
    try:
        build_app()(args=arguments, prog_name="yard")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except ClientError as error:
        session.explain(error)
        return session.exit_code_of(error)
    except OutputClosed:
        return session.EXIT_OUTPUT_CLOSED
    return 0


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
