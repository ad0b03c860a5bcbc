"""JSON Schemas of the events: valid, open, and with words on everything."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from yard_allinone.schemas.events import event_schemas, known_types
from yard_events.golden import golden_events
from yard_events.registry import TOPICS

TYPES = sorted(known_types())
SCHEMAS = event_schemas()


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and everything that it defines, each with a name."""
    yield schema["title"], schema
    yield from schema.get("$defs", {}).items()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_it_is_a_valid_schema_that_says_where_it_belongs(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["x-type"] == name
    assert schema["title"]
    assert schema["description"]


@pytest.mark.parametrize("name", TYPES)
def test_topic_and_key_are_those_of_the_registry(name: str) -> None:
    schema = SCHEMAS[name]
    assert (schema["x-topic"], schema["x-key"]) == (known_types()[name].TOPIC, TOPICS[schema["x-topic"]].key)


@pytest.mark.parametrize("name", TYPES)
def test_every_part_and_field_has_words_of_its_own(name: str) -> None:
    for title, part in parts(SCHEMAS[name]):
        if part.get("type") != "object":
            continue
        assert part.get("description"), title
        for field, described in part["properties"].items():
            assert described.get("description") or "$ref" in described, f"{title}.{field} says nothing"
            assert "title" not in described, f"{title}.{field} repeats its name"


@pytest.mark.parametrize("event", [event for event in golden_events() if event.type in TYPES], ids=lambda e: e.type)
def test_fields_of_later_versions_are_allowed_at_every_depth(event: Any) -> None:
    def added_to(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: added_to(part) for name, part in value.items()} | {"from-a-later-version": "1"}
        return [added_to(part) for part in value] if isinstance(value, list) else value

    later = added_to(json.loads(event.value))
    assert "from-a-later-version" in later
    Draft202012Validator(SCHEMAS[event.type]).validate(later)
