"""What was released, kept in `schemas/released.json`: the file only grows, and only `make schemas-release` writes it.

It stands in the repository because a fresh clone may have no history to compare with.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yard_allinone.schemas.compatibility import ANSWER, EVENT, REQUEST, Break, Incompatibility, compare
from yard_allinone.schemas.events import Schema, event_schemas
from yard_allinone.schemas.files import golden_document, openapi
from yard_allinone.schemas.shapes import Shape, shape_of
from yard_domain.errors import Permanent
from yard_events.base import unwrap
from yard_events.envelope import from_headers
from yard_events.golden import golden_events

FILE = "released.json"

Entry = dict[str, Any]
Released = dict[str, dict[str, Entry]]
"""`events` by type: topic, key, shape, and every golden event ever released. `http` by operation: see `operations`."""


def current() -> Released:
    """What the code says now, in the form in which releases are kept."""
    golden = {envelope.type: golden_document(envelope) for envelope in golden_events()}
    events = {
        name: {
            "topic": schema["x-topic"],
            "key": schema["x-key"],
            "shape": shape_of(schema, schema),
            "golden": [golden[name]],
        }
        for name, schema in event_schemas().items()
    }
    return {"events": events, "http": operations(openapi())}


def operations(document: Schema) -> dict[str, Entry]:
    """Each operation of an OpenAPI document: its id, parameters, and the shapes of bodies and of answers below 400."""
    return {
        f"{method.upper()} {path}": _operation(operation, document)
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    }


def _operation(operation: Schema, document: Schema) -> Entry:
    def bodies(content: Mapping[str, Schema]) -> dict[str, Shape]:
        return {media: shape_of(body.get("schema", {}), document) for media, body in sorted(content.items())}

    parameters = {
        f"{one['in']} {one['name']}": {
            "required": one.get("required", False),
            "shape": shape_of(one.get("schema", {}), document),
        }
        for one in operation.get("parameters", ())
    }
    return {
        "id": operation["operationId"],
        "parameters": dict(sorted(parameters.items())),
        "request": bodies(operation.get("requestBody", {}).get("content", {})),
        "answers": {
            status: bodies(answer.get("content", {}))
            for status, answer in sorted(operation["responses"].items())
            if int(status) < 400
        },
    }


def incompatibilities(released: Released, now: Released) -> list[Incompatibility]:
    """Everything in which the code breaks what was released."""
    found = [*_event_breaks(released["events"], now["events"]), *_http_breaks(released["http"], now["http"])]
    found += _unreadable(released["events"])
    return sorted(found, key=str)


def _event_breaks(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Iterator[Incompatibility]:
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            yield Incompatibility(Break.TYPE_REMOVED, name, "events of it are in the log, and readers wait for more")
            continue
        for what, rule in (("topic", Break.TOPIC_CHANGED), ("key", Break.KEY_CHANGED)):
            if before[what] != after[what]:
                yield Incompatibility(rule, name, f"{before[what]} became {after[what]}")
        yield from compare(before["shape"], after["shape"], EVENT, name)


def _http_breaks(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Iterator[Incompatibility]:
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            yield Incompatibility(Break.OPERATION_REMOVED, name, "clients call it")
            continue
        if before["id"] != after["id"]:
            message = f"{before['id']} became {after['id']}: generated clients call it by this name"
            yield Incompatibility(Break.OPERATION_ID_CHANGED, name, message)
        yield from _parameter_breaks(name, before["parameters"], after["parameters"])
        yield from _body_breaks(f"{name} request", before["request"], after["request"], Break.BODY_REMOVED)
        for status in before["answers"].keys() - after["answers"].keys():
            yield Incompatibility(Break.ANSWER_REMOVED, f"{name} {status}", "clients know it")
        for status in before["answers"].keys() & after["answers"].keys():
            both = before["answers"][status], after["answers"][status]
            yield from _body_breaks(f"{name} {status}", *both, Break.ANSWER_REMOVED)


def _parameter_breaks(name: str, old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Iterator[Incompatibility]:
    for parameter in old.keys() - new.keys():
        yield Incompatibility(Break.PARAMETER_REMOVED, f"{name} {parameter}", "clients send it")
    for parameter, after in new.items():
        before = old.get(parameter)
        if after["required"] and not (before and before["required"]):
            yield Incompatibility(Break.PARAMETER_REQUIRED, f"{name} {parameter}", "clients do not send it")
        if before is not None:
            yield from compare(before["shape"], after["shape"], REQUEST, f"{name} {parameter}")


def _body_breaks(
    where: str, old: Mapping[str, Shape], new: Mapping[str, Shape], removed: Break
) -> Iterator[Incompatibility]:
    way = REQUEST if removed is Break.BODY_REMOVED else ANSWER
    for media in old.keys() - new.keys():
        yield Incompatibility(removed, f"{where} {media}", "clients use it")
    for media in old.keys() & new.keys():
        yield from compare(old[media], new[media], way, where)


def _unreadable(events: Mapping[str, Entry]) -> Iterator[Incompatibility]:
    """Golden events that were released and that this code cannot read."""
    for name, entry in events.items():
        for golden in entry["golden"]:
            try:
                value = json.dumps(golden["value"]).encode()
                unwrap(from_headers(golden["topic"], golden["key"], golden["headers"], value))
            except (ValueError, Permanent) as error:
                yield Incompatibility(Break.GOLDEN_UNREADABLE, name, " ".join(str(error).split()))


def grown(released: Released, now: Released) -> Released:
    """The next release: as the code is now, with every golden event that ever was. Call it for what is compatible."""
    events = {
        name: entry | {"golden": _appended(released["events"].get(name, {}).get("golden", ()), entry["golden"])}
        for name, entry in now["events"].items()
    }
    return {"events": events, "http": now["http"]}


def _appended(old: Iterable[Schema], new: Iterable[Schema]) -> list[Schema]:
    kept = list(old)
    return kept + [golden for golden in new if golden not in kept]


def read(folder: Path) -> Released:
    """What `folder` keeps; nothing before the first release. Raises OSError, ValueError."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"events": {}, "http": {}}


def text_of(released: Released) -> str:
    """One line per type and operation, so that a change shows what it changes."""
    sections = []
    for section, entries in sorted(released.items()):
        lines = [
            f"    {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False, sort_keys=True, separators=(',', ':'))}"
            for name, entry in sorted(entries.items())
        ]
        sections.append(f"  {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(sections) + "\n}\n"
