"""The AsyncAPI document: every topic of the registry, every type, and no reference into nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yard_allinone.schemas.asyncapi import asyncapi
from yard_allinone.schemas.events import known_types
from yard_events.dead_letters import DEAD_LETTER_TYPES
from yard_events.registry import TOPICS, Policy

DOCUMENT = asyncapi()
FOLDER = Path(__file__).parents[3] / "schemas"


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    if isinstance(value, list):
        for part in value:
            yield from references(part)


def resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def test_it_is_version_3_with_what_the_specification_requires() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert DOCUMENT["info"]["title"]
    assert DOCUMENT["info"]["version"]
    assert list(DOCUMENT) == [
        "asyncapi", "info", "defaultContentType", "servers", "channels", "operations", "components",
    ]  # fmt: skip


def test_channels_are_the_topics_of_the_registry() -> None:
    assert set(DOCUMENT["channels"]) == set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda topic: topic.name)
def test_a_channel_says_who_writes_it_by_which_key_and_how_long_it_stays(topic: Any) -> None:
    channel = DOCUMENT["channels"][topic.name]
    assert (channel["x-writer"], channel["x-key"]) == (topic.writer, topic.key)
    assert (channel["x-policy"], channel["x-retention-seconds"]) == (topic.policy.value, topic.retention_seconds)
    kafka = channel["bindings"]["kafka"]
    retention = "retention.ms" if topic.policy is Policy.DELETE else "delete.retention.ms"
    assert kafka["topic"] == channel["address"] == topic.name
    assert kafka["topicConfiguration"] == {
        "cleanup.policy": [topic.policy.value],
        retention: topic.retention_seconds * 1000,
    }


def test_a_channel_carries_exactly_its_types() -> None:
    carried = {name: set(channel["messages"]) for name, channel in DOCUMENT["channels"].items()}
    expected: dict[str, set[str]] = {name: set() for name in TOPICS}
    for name, model in known_types().items():
        expected[model.TOPIC].add(name)
    for name in TOPICS:
        if name.startswith("yard.dlq."):
            expected[name].update(DEAD_LETTER_TYPES)
    assert carried == expected
    assert all(carried.values()), "a topic without a type"


def test_the_writer_of_a_topic_sends_all_its_types_and_nobody_else_sends() -> None:
    sent = {operation["channel"]["$ref"]: operation for operation in DOCUMENT["operations"].values()}
    assert len(sent) == len(DOCUMENT["operations"]) == len(TOPICS)
    for name, topic in TOPICS.items():
        operation = sent[f"#/channels/{name}"]
        assert (operation["action"], operation["x-service"]) == ("send", topic.writer)
        assert {message["$ref"].rpartition("/")[2] for message in operation["messages"]} == set(
            DOCUMENT["channels"][name]["messages"]
        )


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 2 * len(TOPICS)
    for reference in found:
        if reference.startswith("#/"):
            assert resolved(reference)
        else:
            assert (FOLDER / reference).is_file(), reference
    for message in DOCUMENT["components"]["messages"].values():
        assert (FOLDER / message["x-golden"]).is_file()


def test_a_message_is_correlated_by_a_header_that_is_described() -> None:
    headers = DOCUMENT["components"]["schemas"]["eventHeaders"]["properties"]
    for message in DOCUMENT["components"]["messages"].values():
        assert message["correlationId"]["location"].removeprefix("$message.header#/") in headers
    assert {"yard_publishseq", "traceparent", "tracestate", "ce_projectid"} <= set(headers)
