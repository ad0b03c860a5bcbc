"""JSON Schemas (2020-12) of the event types, from their models."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from yard_events import types
from yard_events.base import EventModel, models
from yard_events.dead_letters import PARKED_TYPE, RESOLVED_TYPE, DeadLetterResolved
from yard_events.envelope import data_schema
from yard_events.registry import TOPICS

DEAD_LETTER_TOPICS = "yard.dlq.<service>.v1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


class _Plain(GenerateJsonSchema):
    """Without a title on every field, which would only repeat the field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def known_types() -> dict[str, type[EventModel]]:
    """The event types by name."""
    known = models()
    # Importing the module is what fills the table; test doubles made elsewhere are not published.
    return {name: known[name] for name in sorted(known) if known[name].__module__.startswith(types.__package__ or "")}


def event_schema(model: type[EventModel]) -> Schema:
    """The schema of one type's value. Unknown properties are allowed everywhere: later versions add some."""
    return _schema(model, model.TYPE, model.TOPIC, TOPICS[model.TOPIC].key)


def _schema(model: type[BaseModel], name: str, topic: str, key: str) -> Schema:
    made = _open(model.model_json_schema(schema_generator=_Plain))
    parts = made.pop("$defs", {})
    schema = _head(name, topic, key, made.pop("title"), made.pop("description")) | made
    return schema | ({"$defs": parts} if parts else {})


def _head(name: str, topic: str, key: str, title: str, description: str) -> Schema:
    return {
        "$schema": DIALECT,
        "$id": data_schema(name),
        "title": title,
        "description": description,
        "x-type": name,
        "x-topic": topic,
        "x-key": key,
    }


def dead_letter_schemas() -> dict[str, Schema]:
    """What was parked and how that ended. The value of the first is the parked record's, so any."""
    words = (
        "A record that a service cannot handle, or one queued behind it: the bytes of the original, whatever they "
        "are. Headers yard_dlq_topic, yard_dlq_partition, yard_dlq_offset and yard_dlq_error say whence and why; "
        "the original's headers travel as yard_dlq_header_…"
    )
    return {
        PARKED_TYPE: _head(PARKED_TYPE, DEAD_LETTER_TOPICS, "original", "DeadLetter", words),
        RESOLVED_TYPE: _schema(DeadLetterResolved, RESOLVED_TYPE, DEAD_LETTER_TOPICS, "original"),
    }


def event_schemas() -> dict[str, Schema]:
    """All of them, by type."""
    schemas = {name: event_schema(model) for name, model in known_types().items()}
    return dict(sorted((schemas | dead_letter_schemas()).items()))


def _open(value: Any) -> Any:
    """Without what the job document refuses at the edge only: readers of events ignore what they do not know."""
    if isinstance(value, dict):
        return {name: _open(part) for name, part in value.items() if (name, part) != ("additionalProperties", False)}
    if isinstance(value, list):
        return [_open(part) for part in value]
    return value
