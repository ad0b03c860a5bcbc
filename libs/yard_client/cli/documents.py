"""Job documents from files, and changes to their fields from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer

JSON = "application/json"
YAML = "application/yaml"
# Enough for the server to see that a document is too large; more would only fill the memory here.
MOST_BYTES = 256 * 1024 + 1


@dataclass(frozen=True, slots=True)
class Document:
    """Bytes as they were written, or the changed value of them."""

    value: bytes | dict[str, Any]
    content_type: str


def read_document(file: str, settings: Sequence[str]) -> Document:
    """The document of a file, `-` for stdin. Unchanged ones travel as they are, so that the server judges them."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MOST_BYTES)
        else:
            with Path(file).open("rb") as source:
                content = source.read(MOST_BYTES)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}", param_hint="FILE") from None
    if not settings:
        return Document(content, JSON if file.endswith(".json") else YAML)
    return Document(_changed(file, content, settings), JSON)


def _changed(file: str, content: bytes, settings: Sequence[str]) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(content)
        values = [(key, yaml.safe_load(value)) for key, _, value in (text.partition("=") for text in settings)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} or --set is not valid YAML: {error}", param_hint="--set") from None
    if not isinstance(document, dict):
        raise typer.BadParameter(f"{file} does not hold a document of fields", param_hint="FILE")
    found = cast("dict[str, Any]", document)
    for text, (path, value) in zip(settings, values, strict=True):
        if "=" not in text or not all(path.split(".")):
            raise typer.BadParameter(
                f"{text!r} is not of the form FIELD=VALUE, such as tasks.count=4", param_hint="--set"
            )
        _set(found, path, value)
    return found


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    section = document
    for name in parents:
        inner = section.setdefault(name, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(f"{path!r}: {name!r} is not a section of fields", param_hint="--set")
        section = cast("dict[str, Any]", inner)
    section[last] = value
