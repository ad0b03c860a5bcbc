"""`yard version`, `config`."""

from __future__ import annotations

from importlib import metadata

import typer

from yard_client.cli import session
from yard_client.cli.output import ItemFormat, ItemOutput, write_json, write_text


def register(app: typer.Typer) -> None:
    app.command("version")(version)
    config_app = typer.Typer(no_args_is_help=True, help="Show which server the client talks to, and as whom.")
    config_app.callback()(_config)
    config_app.command("show")(show)
    app.add_typer(config_app, name="config")


def version(output: ItemOutput = ItemFormat.TABLE) -> None:
    """Print the version of this client.

    \b
    Example:
      yard version
    """
    found = metadata.version("gpuyard")
    if output == ItemFormat.JSON:
        write_json({"version": found})
    else:
        write_text(f"gpuyard {found}")


def _config() -> None:
    """Show which server the client talks to, and as whom."""


def show(output: ItemOutput = ItemFormat.TABLE) -> None:
    """Print the URL and the masked token that count, and where each comes from.

    \b
    Example:
      yard config show
    """
    loaded = session.load_config()
    if output == ItemFormat.JSON:
        write_json(
            {
                "path": str(loaded.path), "url": loaded.url, "url_source": loaded.url_source,
                "token": loaded.masked_token, "token_source": loaded.token_source,
            }
        )  # fmt: skip
        return
    write_text(f"url:    {loaded.url}  ({loaded.url_source})")
    write_text(f"token:  {loaded.masked_token}  ({loaded.token_source})")
    write_text(f"file:   {loaded.path}")
