"""The files of `schemas/` as they should be, and how they are."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from yard_allinone.schemas.asyncapi import asyncapi
from yard_allinone.schemas.events import Schema, event_schemas
from yard_events.envelope import Envelope
from yard_events.golden import golden_events
from yard_gateway.api import create_app

GENERATED_FOLDERS = ("events", "golden")
GENERATED_FILES = ("asyncapi.yaml", "openapi.json")


@dataclass(frozen=True, slots=True)
class Difference:
    """A generated file that is not as the code says. `what`: missing, changed or left over."""

    path: str
    what: str


def openapi() -> Schema:
    """The gateway's description of its HTTP API."""
    return create_app().openapi()


def golden_document(envelope: Envelope) -> Schema:
    """How a golden event stands in its file: as on Kafka, the value decoded."""
    return {
        "topic": envelope.topic,
        "key": envelope.key,
        "headers": dict(sorted(envelope.headers().items())),
        "value": json.loads(envelope.value),
    }


def generate() -> dict[str, str]:
    """The text of every generated file, by its path in `schemas/`. The same code gives the same bytes."""
    files = {f"events/{name}.json": _json(schema) for name, schema in event_schemas().items()}
    files |= {f"golden/{envelope.type}.json": _json(golden_document(envelope)) for envelope in golden_events()}
    files["asyncapi.yaml"] = _yaml(asyncapi())
    # FastAPI's order is that of its own fields and may change with its version.
    files["openapi.json"] = _json(openapi(), sort_keys=True)
    return files


def write(folder: Path, files: dict[str, str]) -> None:
    """Make the generated part of `folder` exactly this. Raises OSError."""
    for found in _present(folder) - set(files):
        (folder / found).unlink()
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def differences(folder: Path, files: dict[str, str]) -> list[Difference]:
    """What `write` would change."""
    present = _present(folder)
    found = [Difference(path, "left over") for path in present - set(files)]
    found += [Difference(path, "missing") for path in set(files) - present]
    found += [
        Difference(path, "changed")
        for path in present & set(files)
        if (folder / path).read_text(encoding="utf-8") != files[path]
    ]
    return sorted(found, key=lambda difference: difference.path)


def _present(folder: Path) -> set[str]:
    inside = {path for name in GENERATED_FOLDERS for path in (folder / name).glob("*")}
    beside = {folder / name for name in GENERATED_FILES if (folder / name).exists()}
    return {path.relative_to(folder).as_posix() for path in inside | beside}


def _json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=sort_keys) + "\n"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
