"""Each way to break those who use what was released is planted once, and found; what may change is not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from yard_allinone.schemas.compatibility import Break
from yard_allinone.schemas.released import current, incompatibilities

NOW = current()
Plant = Callable[[Any], None]

SUBMIT, FAILED, PLACE = "yard.jobs.submit.v1", "yard.jobs.failed.v1", "yard.placement.place.v1"
POST, LIST, GET, TOKENS = "POST /v1/jobs", "GET /v1/jobs", "GET /v1/jobs/{job_id}", "POST /v1/tokens"


def later(plant: Plant) -> Any:
    """The code as it would be after a change."""
    changed = copy.deepcopy(NOW)
    plant(changed)
    return changed


def event(state: Any, name: str) -> Any:
    return state["events"][name]["shape"]


def fields(shape: Any, *path: str) -> Any:
    """The properties of a shape, or of what lies deeper in it; `[]` steps into a list."""
    for name in path:
        shape = shape["items"] if name == "[]" else shape["properties"][name]
    return shape["properties"]


def body(state: Any, operation: str) -> Any:
    return state["http"][operation]["request"]["application/json"]


def answer(state: Any, operation: str, status: str = "200") -> Any:
    return state["http"][operation]["answers"][status]["application/json"]


def drop(mapping: Any, name: str) -> None:
    del mapping[name]


def required(shape: Any, name: str, kind: str = "string") -> None:
    shape["properties"][name] = {"types": [kind]}
    shape["required"] = sorted([*shape["required"], name])


BREAKS: list[tuple[Break, str, Plant]] = [
    (Break.TYPE_REMOVED, SUBMIT, lambda s: drop(s["events"], SUBMIT)),
    (Break.TOPIC_CHANGED, SUBMIT, lambda s: s["events"][SUBMIT].update(topic="yard.jobs.events.v1")),
    (Break.KEY_CHANGED, SUBMIT, lambda s: s["events"][SUBMIT].update(key="project")),
    (Break.FIELD_REMOVED, f"{FAILED}.detail", lambda s: drop(fields(event(s, FAILED)), "detail")),
    (
        Break.FIELD_REMOVED,
        f"{FAILED}.tasks[].signal",
        lambda s: drop(fields(event(s, FAILED), "tasks", "[]"), "signal"),
    ),
    (Break.FIELD_REMOVED, f"{SUBMIT}.spec.run.env", lambda s: drop(fields(event(s, SUBMIT), "spec", "run"), "env")),
    (Break.FIELD_REQUIRED, f"{FAILED}.cost", lambda s: required(event(s, FAILED), "cost")),
    (Break.FIELD_REQUIRED, f"{FAILED}.reason", lambda s: event(s, FAILED)["required"].append("reason")),
    (Break.FIELD_NO_LONGER_REQUIRED, f"{FAILED}.queue", lambda s: event(s, FAILED)["required"].remove("queue")),
    (Break.TYPE_CHANGED, f"{FAILED}.attempt", lambda s: fields(event(s, FAILED))["attempt"].update(types=["string"])),
    (
        Break.TYPE_CHANGED,
        f"{FAILED}.attempt",
        lambda s: fields(event(s, FAILED))["attempt"].update(types=["integer", "string"]),
    ),
    (Break.TYPE_CHANGED, f"{FAILED}.detail", lambda s: fields(event(s, FAILED))["detail"].update(types=["string"])),
    (Break.TYPE_CHANGED, f"{FAILED}.at", lambda s: fields(event(s, FAILED))["at"].update(format="date")),
    (
        Break.ENUM_NARROWED,
        f"{SUBMIT}.spec.tier",
        lambda s: fields(event(s, SUBMIT), "spec")["tier"]["enum"].remove("batch"),
    ),
    (Break.ENUM_NARROWED, f"{FAILED}.state", lambda s: fields(event(s, FAILED))["state"].update(enum=["failed"])),
    (Break.BOUND_NARROWED, f"{PLACE}.tasks.gpus", lambda s: fields(event(s, PLACE), "tasks")["gpus"].update(maximum=8)),
    (
        Break.BOUND_NARROWED,
        f"{PLACE}.tasks.count",
        lambda s: fields(event(s, PLACE), "tasks")["count"].update(minimum=2),
    ),
    (Break.BOUND_NARROWED, f"{FAILED}.name", lambda s: fields(event(s, FAILED))["name"].update(maxLength=10)),
    (
        Break.DEFAULT_CHANGED,
        f"{SUBMIT}.spec.priority",
        lambda s: fields(event(s, SUBMIT), "spec")["priority"].update(default=5),
    ),
    (Break.OPERATION_REMOVED, GET, lambda s: drop(s["http"], GET)),
    (Break.OPERATION_ID_CHANGED, GET, lambda s: s["http"][GET].update(id="job")),
    (Break.PARAMETER_REMOVED, f"{LIST} query state", lambda s: drop(s["http"][LIST]["parameters"], "query state")),
    (
        Break.PARAMETER_REQUIRED,
        f"{LIST} query state",
        lambda s: s["http"][LIST]["parameters"]["query state"].update(required=True),
    ),
    (
        Break.PARAMETER_REQUIRED,
        f"{LIST} query zone",
        lambda s: s["http"][LIST]["parameters"].update({"query zone": {"required": True, "shape": {}}}),
    ),
    (
        Break.BOUND_NARROWED,
        f"{LIST} query limit",
        lambda s: s["http"][LIST]["parameters"]["query limit"]["shape"].update(maximum=100),
    ),
    (
        Break.BODY_REMOVED,
        f"{POST} request application/yaml",
        lambda s: drop(s["http"][POST]["request"], "application/yaml"),
    ),
    (Break.FIELD_REQUIRED, f"{POST} request.owner", lambda s: required(body(s, POST), "owner")),
    (Break.FIELD_REMOVED, f"{POST} request.labels", lambda s: drop(fields(body(s, POST)), "labels")),
    (Break.ENUM_NARROWED, f"{TOKENS} request.role", lambda s: fields(body(s, TOKENS))["role"]["enum"].remove("viewer")),
    (Break.ANSWER_REMOVED, f"{POST} 201", lambda s: drop(s["http"][POST]["answers"], "201")),
    (Break.FIELD_REMOVED, f"{GET} 200.state", lambda s: drop(fields(answer(s, GET)), "state")),
    (Break.FIELD_REMOVED, f"{LIST} 200.items[].queue", lambda s: drop(fields(answer(s, LIST), "items", "[]"), "queue")),
    (Break.FIELD_NO_LONGER_REQUIRED, f"{GET} 200.queue", lambda s: answer(s, GET)["required"].remove("queue")),
    (Break.TYPE_CHANGED, f"{GET} 200.attempt", lambda s: fields(answer(s, GET))["attempt"].update(types=["string"])),
]

ALLOWED: list[tuple[str, Plant]] = [
    ("nothing", lambda s: None),
    ("a new type", lambda s: s["events"].update({"yard.jobs.paused.v1": s["events"][FAILED]})),
    ("a new optional field", lambda s: fields(event(s, FAILED)).update(cost={"types": ["number", "null"]})),
    ("a wider enum", lambda s: fields(event(s, SUBMIT), "spec")["tier"]["enum"].append("notebook")),
    ("a wider bound", lambda s: fields(event(s, PLACE), "tasks")["gpus"].update(maximum=128)),
    ("no bound", lambda s: drop(fields(event(s, PLACE), "tasks")["gpus"], "maximum")),
    (
        "an object's default that grows with its type",
        lambda s: fields(event(s, SUBMIT), "spec")["tasks"]["default"].update(shares=None),
    ),
    ("a new operation", lambda s: s["http"].update({"GET /v1/prices": s["http"][GET]})),
    ("a new optional parameter", lambda s: s["http"][LIST]["parameters"].update({"query q": {"required": False}})),
    ("a request that may leave out more", lambda s: body(s, TOKENS)["required"].remove("role")),
    ("a request that takes more types", lambda s: fields(body(s, TOKENS))["name"].update(types=["integer", "string"])),
    ("an answer that says more", lambda s: required(answer(s, GET), "cost", "number")),
    ("an answer with a new state", lambda s: fields(answer(s, GET))["state"]["enum"].append("paused")),
]


@pytest.mark.parametrize(
    ("rule", "where", "plant"), BREAKS, ids=[f"{rule.name.lower()}-{where}" for rule, where, _ in BREAKS]
)
def test_a_break_is_found_and_named(rule: Break, where: str, plant: Plant) -> None:
    [found] = incompatibilities(NOW, later(plant))
    assert (found.rule, found.where) == (rule, where)
    assert str(found).startswith(f"{where}: {rule.value}")


@pytest.mark.parametrize(("what", "plant"), ALLOWED, ids=[what for what, _ in ALLOWED])
def test_what_may_change_is_not_complained_about(what: str, plant: Plant) -> None:
    assert incompatibilities(NOW, later(plant)) == []


def test_every_rule_has_a_case() -> None:
    planted = {rule for rule, _, _ in BREAKS}
    assert set(Break) - planted == {Break.GOLDEN_UNREADABLE}  # below


@pytest.mark.parametrize(
    ("what", "plant"),
    [
        ("a value that its model refuses now", lambda g: g["value"].update(job_id=7)),
        ("a field that is needed now", lambda g: g["value"].pop("job_id")),
        ("a header that is needed now", lambda g: g["headers"].pop("ce_id")),
        ("a document that is refused now", lambda g: g["value"]["spec"].update(name="NOT A NAME")),
    ],
)
def test_a_released_golden_event_that_cannot_be_read_any_more_is_a_break(what: str, plant: Plant) -> None:
    released = copy.deepcopy(NOW)
    plant(released["events"][SUBMIT]["golden"][0])
    [found] = incompatibilities(released, NOW)
    assert (found.rule, found.where) == (Break.GOLDEN_UNREADABLE, SUBMIT)
