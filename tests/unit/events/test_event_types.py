"""Every event type: a name of its own, a known topic, and a codec that gives back what it got."""

import json
import re
from datetime import UTC, datetime
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from yard_domain.errors import Permanent
from yard_events import job_document, types
from yard_events.base import EventModel, models, unwrap, wrap
from yard_events.envelope import from_headers
from yard_events.registry import TOPICS, Policy

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

EVENTS = sorted(
    (model for model in models().values() if model.__module__.startswith("yard_events.")), key=lambda model: model.TYPE
)


def concrete(model: type[EventModel]) -> list[type[EventModel]]:
    found = [model] if "TYPE" in model.__dict__ else []
    return found + [leaf for child in model.__subclasses__() for leaf in concrete(child)]


def sample(annotation: Any, name: str) -> Any:
    """A value of a field's type, in the form of JSON."""
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    if get_origin(annotation) is list:
        return [sample(arguments[0], name)]
    if get_origin(annotation) is dict:
        return {"a": "b"}
    if arguments:
        return sample(arguments[0], name)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sample_document(annotation)
    return {int: 3, float: 1.5, bool: True, str: f"some-{name}".replace("_", "-")}.get(annotation, AT.isoformat())


def sample_document(model: type[BaseModel]) -> dict[str, Any]:
    if model is job_document.JobDocument:
        return {"name": "a", "run": {"command": ["x"]}, "limits": {"max_run_time": 90}}
    if model is job_document.RunDocument:
        return {"command": ["x", "✓"], "env": {"A": "b"}, "workdir": "/srv"}
    if model is job_document.TasksDocument:
        return {"count": 2, "gpus": 4, "cpus": 0.5, "memory": 1024}
    return {name: sample(field.annotation, name) for name, field in model.model_fields.items()}


def test_there_are_events_and_no_two_share_a_type() -> None:
    mine = [model for model in concrete(EventModel) if model.__module__.startswith("yard_events.")]
    assert len(mine) == len({model.TYPE for model in mine}) == len(EVENTS)
    assert len(EVENTS) > 25


@pytest.mark.parametrize("model", EVENTS, ids=lambda model: model.TYPE)
def test_an_event_type_is_named_versioned_and_has_a_known_topic(model: type[EventModel]) -> None:
    assert re.fullmatch(r"yard\.[a-z]+\.[a-z_]+\.v[1-9]", model.TYPE)
    assert model.TOPIC in TOPICS
    assert model.TYPE.split(".")[1] == model.TOPIC.split(".")[1]


@pytest.mark.parametrize("model", EVENTS, ids=lambda model: model.TYPE)
def test_an_event_round_trips_with_all_fields_and_with_the_required_ones(model: type[EventModel]) -> None:
    full = sample_document(model)
    required = {name: full[name] for name, field in model.model_fields.items() if field.is_required()}
    for data in (full, required):
        event = model.model_validate(data)
        envelope = wrap(event, event_id="evt-1", source="tests", time=AT)
        received = from_headers(envelope.topic, envelope.key, envelope.headers(), envelope.value)
        assert received == envelope
        assert unwrap(received) == event
        assert event.key()
        assert (envelope.subject, envelope.project_id) == (event.subject(), getattr(event, "project_id", None))


@pytest.mark.parametrize("model", EVENTS, ids=lambda model: model.TYPE)
def test_fields_of_a_newer_writer_are_ignored_at_every_depth(model: type[EventModel]) -> None:
    def grown(value: Any) -> Any:
        if isinstance(value, list):
            return [grown(item) for item in value]
        if isinstance(value, dict) and set(value) not in ({"a"}, {"A"}):
            return {name: grown(item) for name, item in value.items()} | {"added_later": 1}
        return value

    data = sample_document(model)
    event = model.model_validate(data)
    envelope = wrap(event, event_id="evt-1", source="tests", time=AT)
    newer = from_headers(envelope.topic, envelope.key, envelope.headers(), json.dumps(grown(data)).encode())
    assert unwrap(newer) == event


@pytest.mark.parametrize("model", EVENTS, ids=lambda model: model.TYPE)
def test_a_lacking_field_is_permanent_and_named(model: type[EventModel]) -> None:
    full = sample_document(model)
    envelope = wrap(model.model_validate(full), event_id="evt-1", source="tests", time=AT)
    for name in [name for name, field in model.model_fields.items() if field.is_required()]:
        value = json.dumps({key: item for key, item in full.items() if key != name}).encode()
        with pytest.raises(Permanent, match=name):
            unwrap(from_headers(envelope.topic, envelope.key, envelope.headers(), value))


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"queue": "\\ud800"}', b'{"queue": NaN}'], ids=repr
)
def test_bytes_that_are_no_event_are_permanent(value: bytes) -> None:
    event = types.QueueState(queue="default", gpu_quota=1, at=AT)
    headers = wrap(event, event_id="evt-1", source="tests", time=AT).headers()
    with pytest.raises(Permanent, match=r"yard\.queues\.state\.v1 evt-1"):
        unwrap(from_headers("t", "k", headers, value))


def test_times_without_a_zone_are_refused() -> None:
    with pytest.raises(ValueError, match="timezone"):
        types.QueueState(queue="default", gpu_quota=1, at=AT.replace(tzinfo=None))


def test_numbers_that_json_cannot_carry_are_refused_when_the_event_is_made() -> None:
    with pytest.raises(ValueError, match="finite"):
        types.StopTask(
            node="n", epoch="e", allocation_id="a", command_seq=1, grace_seconds=float("inf"), reason="cancelled"
        )


def test_an_unknown_type_has_no_data() -> None:
    event = types.QueueState(queue="default", gpu_quota=1, at=AT)
    envelope = wrap(event, event_id="evt-1", source="tests", time=AT)
    unknown = from_headers("t", "k", envelope.headers() | {"ce_type": "yard.queues.renamed.v1"}, envelope.value)
    assert unwrap(unknown) is None


def test_a_type_name_can_be_given_once_only() -> None:
    with pytest.raises(TypeError, match="same type"):
        type("Other", (types.QueueState,), {"TYPE": types.QueueState.TYPE, "__module__": __name__})


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda topic: topic.name)
def test_a_topic_has_one_writer_a_key_and_a_retention(topic: Any) -> None:
    assert re.fullmatch(r"yard\.[a-z]+\.[a-z]+\.v1", topic.name)
    assert topic.writer
    assert topic.key
    assert topic.retention_seconds > 0
    assert topic.partitions >= 1
    assert topic.policy in Policy
    assert topic.name.startswith("yard.dlq.") or any(topic.name == model.TOPIC for model in EVENTS)
