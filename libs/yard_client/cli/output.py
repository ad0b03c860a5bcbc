"""What reaches the terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from yard_domain.quantities import format_seconds

NARROWEST_LAST_COLUMN = 20
STATE_STYLES = {
    "running": "green",
    "succeeded": "green",
    "ready": "green",
    "ok": "green",
    "failed": "red",
    "expired": "red",
    "lost": "red",
    "FOUND": "red",
    "suspect": "yellow",
    "cancelling": "yellow",
    "queued": "yellow",
    "cancelled": "dim",
}


class ListFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


class ItemFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


class NamedFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    NAME = "name"


ListOutput = Annotated[ListFormat, typer.Option("-o", "--output", help="How to print the result.")]
ItemOutput = Annotated[ItemFormat, typer.Option("-o", "--output", help="How to print the result.")]
NamedOutput = Annotated[NamedFormat, typer.Option("-o", "--output", help="How to print the result.")]


class OutputClosed(Exception):
    """Whoever read stdout went away, as `head` does."""


def notice(text: str) -> None:
    """A sentence for people, on stderr."""
    print(f"yard: {printable(text)}", file=sys.stderr, flush=True)


def write_bytes(data: bytes) -> None:
    """Bytes to stdout, at once and as they are. Raises OutputClosed."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputClosed from None


def write_text(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    write_bytes(f"{text}\n".encode(encoding, "backslashreplace"))


def write_json(value: Any) -> None:
    """One document, indented."""
    write_bytes(_json_bytes(value, indent=2))


def write_json_line(value: Any) -> None:
    """One line of a stream of documents (ndjson)."""
    write_bytes(_json_bytes(value, separators=(",", ":")))


def write_json_each(values: Sequence[Any]) -> None:
    """One value as a document, several as one line each."""
    if len(values) == 1:
        write_json(values[0])
    else:
        for value in values:
            write_json_line(value)


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> None:
    """Columns as wide as the terminal allows; without a terminal nothing is wrapped or cut."""
    write_text(table_text(columns, rows, indent=indent))


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> str:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number < len(columns) - 1, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    # Only the last column may be folded; a terminal too narrow for the others wraps lines by itself.
    others = sum(max(cell_len(text) for text in column) + 2 for column in list(zip(columns, *cells, strict=True))[:-1])
    width = shutil.get_terminal_size().columns - indent
    width = width if terminal and width - others >= NARROWEST_LAST_COLUMN else 100_000
    console = Console(width=width, force_terminal=terminal, highlight=False, emoji=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(" " * indent + line.rstrip() for line in capture.get().splitlines())


def printable(text: str) -> str:
    """Text from elsewhere without control characters: a job's name or message must not drive the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "replace").decode()
        for character in text
    )


def age(since: str | None, until: datetime | str | None) -> str:
    """The time between two instants, for people; empty when one is missing."""
    if since is None or until is None:
        return ""
    end = until if isinstance(until, datetime) else datetime.fromisoformat(until)
    return format_seconds(max(0.0, (end - datetime.fromisoformat(since)).total_seconds()))


def moment(value: str | None) -> str:
    """A time to the millisecond, in UTC."""
    if value is None:
        return ""
    return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def _json_bytes(value: Any, **style: Any) -> bytes:
    try:
        return (json.dumps(value, ensure_ascii=False, **style) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and UTF-8 cannot
        return (json.dumps(value, **style) + "\n").encode()
