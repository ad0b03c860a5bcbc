"""Golden events: one per type, fixed, valid by the published schemas, and read back as what they were."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from yard_allinone.schemas.asyncapi import asyncapi
from yard_allinone.schemas.events import event_schemas, known_types
from yard_allinone.schemas.files import golden_document
from yard_bus import dead_letters
from yard_bus.protocol import PartitionRef, Record
from yard_events.base import unwrap
from yard_events.dead_letters import (
    DEAD_LETTER_TYPES,
    PARKED_TYPE,
    RESOLVED_TYPE,
    DeadLetterResolved,
    Origin,
    error_of,
    origin_of,
)
from yard_events.envelope import data_schema, from_headers
from yard_events.golden import golden_events
from yard_events.registry import TOPICS

FOLDER = Path(__file__).parents[3] / "schemas"
DOCUMENT = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))
PUBLISHED = sorted(path.name.removesuffix(".json") for path in (FOLDER / "golden").glob("*.json"))


def published(kind: str, name: str) -> dict[str, Any]:
    return json.loads((FOLDER / kind / f"{name}.json").read_text(encoding="utf-8"))


def test_every_type_has_one() -> None:
    assert PUBLISHED == sorted([*known_types(), *DEAD_LETTER_TYPES]) == [event.type for event in golden_events()]


def test_a_dead_letter_is_as_the_consumer_makes_it() -> None:
    golden = published("golden", PARKED_TYPE)
    origin = {name: text for name, text in golden["headers"].items() if name.startswith("yard_dlq_header_")}
    record = Record(
        PartitionRef(golden["headers"]["yard_dlq_topic"], int(golden["headers"]["yard_dlq_partition"]), ""),
        int(golden["headers"]["yard_dlq_offset"]),
        golden["key"],
        "yard.placement.place.v1",
        {name.removeprefix("yard_dlq_header_"): text for name, text in origin.items()},
        json.dumps(golden["value"], separators=(",", ":")).encode(),
    )
    envelope = next(event for event in golden_events() if event.type == PARKED_TYPE)
    unit_of_work = SimpleNamespace(new_id=lambda _prefix: envelope.id, now=envelope.time)
    made = dead_letters._dead_letter(unit_of_work, "placement", record, golden["headers"]["yard_dlq_error"])
    assert replace(made, publish_seq=envelope.publish_seq) == envelope
    assert error_of(made.extra) == golden["headers"]["yard_dlq_error"]


def test_the_end_of_a_dead_letter_is_as_the_consumer_makes_it() -> None:
    envelope = next(event for event in golden_events() if event.type == RESOLVED_TYPE)
    unit_of_work = SimpleNamespace(new_id=lambda _prefix: envelope.id, now=envelope.time)
    end = DeadLetterResolved.model_validate_json(envelope.value)
    key = dead_letters.OfKey("yard.placement.requests.v1", 0, "local/default")
    made = dead_letters._resolved(unit_of_work, "placement", key, 4711, end)
    trace = {name: text for name, text in envelope.extra.items() if name.startswith("trace")}
    assert replace(made, publish_seq=envelope.publish_seq, extra=made.extra | trace) == envelope
    assert origin_of(made.extra) == Origin("yard.placement.requests.v1", 0, 4711)


def test_they_are_always_the_same() -> None:
    assert golden_events() == golden_events()
    assert len({event.id for event in golden_events()}) == len(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_value_is_what_the_schema_promises(name: str) -> None:
    schema, golden = published("events", name), published("golden", name)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(golden["value"])
    assert golden["headers"]["ce_dataschema"] == schema["$id"] == data_schema(name)


@pytest.mark.parametrize("name", sorted(known_types()))
def test_a_reader_of_the_schema_notices_what_is_wrong(name: str) -> None:
    schema, value = published("events", name), published("golden", name)["value"]
    for field in schema["required"]:
        damaged = {key: part for key, part in value.items() if key != field}
        assert not Draft202012Validator(schema).is_valid(damaged), field
        assert not Draft202012Validator(schema).is_valid(value | {field: [True]}), field


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_headers_are_what_the_asyncapi_document_promises(name: str) -> None:
    headers = published("golden", name)["headers"]
    components = DOCUMENT["components"]
    schema = components["messages"][name]["headers"] | {"components": {"schemas": components["schemas"]}}
    Draft202012Validator(schema).validate(headers)
    assert not Draft202012Validator(schema).is_valid(headers | {"ce_type": "yard.other.v1"})
    for required in components["schemas"]["eventHeaders"]["required"]:
        assert not Draft202012Validator(schema).is_valid({k: v for k, v in headers.items() if k != required}), required


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_code_reads_it_and_writes_the_same_again(name: str) -> None:
    golden = published("golden", name)
    envelope = from_headers(golden["topic"], golden["key"], golden["headers"], json.dumps(golden["value"]).encode())
    data = unwrap(envelope)
    assert golden_document(envelope) == golden
    if name in DEAD_LETTER_TYPES:
        assert data is None
        return
    assert isinstance(data, known_types()[name])
    assert json.loads(data.model_dump_json(exclude_none=True)) == golden["value"]
    assert (data.TOPIC, data.key(), data.subject()) == (envelope.topic, envelope.key, envelope.subject)
    assert envelope.source.split("/")[1] == TOPICS[envelope.topic].writer
    assert envelope.extra["traceparent"].startswith("00-")


def test_the_schemas_published_are_those_of_the_models() -> None:
    assert {name: published("events", name) for name in PUBLISHED} == event_schemas()
    assert asyncapi() == DOCUMENT
