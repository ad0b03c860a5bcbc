"""The job document: what is accepted comes through unchanged, what is refused names its field and what is valid."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from yard_domain.job_spec import Tier
from yard_events.job_document import MAX_ARGUMENT_BYTES, JobDocument
from yard_runtime.http import field_errors

HUGE = 10**400
NAME_RULE = "lower-case letters, digits"
INTEGER = "valid integer"
CPU_RULE = "from 0.001 to 4096"


def document(**sections: Any) -> dict[str, Any]:
    """A valid document, with `section={...}` merged in and `section=value` replaced."""
    base: dict[str, Any] = {"name": "train", "run": {"command": ["python3", "train.py"]}}
    for name, value in sections.items():
        old = base.get(name)
        base[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return base


def refused(data: Any) -> list[dict[str, str]]:
    with pytest.raises(ValidationError) as caught:
        JobDocument.model_validate(data)
    return field_errors(list(caught.value.errors()))


BAD_FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    # names: they become keys, file names and URLs
    *[
        ("name", {"name": value}, "name", NAME_RULE)
        for value in ("", "A", "a b", "a/b", "../a", "a/../b", "a..b", ".", "a\0", "a\n", "é", "a" * 64, "a" * 10_000)
    ],
    *[("name", {"name": value}, "name", "valid string") for value in (None, 1, True, [], {}, b"abc")],
    ("name", {"name": "a\ud800"}, "name", NAME_RULE),
    ("project", {"project": "a/b"}, "project", NAME_RULE),
    ("queue", {"queue": ""}, "queue", NAME_RULE),
    ("tier", {"tier": "gold"}, "tier", "'inference', 'training', 'dev' or 'batch'"),
    ("tier", {"tier": 1}, "tier", "'inference', 'training', 'dev' or 'batch'"),
    *[("priority", {"priority": value}, "priority", INTEGER) for value in (True, 1.0, 1.5, "1", None, [])],
    ("priority", {"priority": 1001}, "priority", "less than or equal to 1000"),
    ("priority", {"priority": -1001}, "priority", "greater than or equal to -1000"),
    ("priority", {"priority": HUGE}, "priority", "less than or equal to 1000"),
    # tasks
    *[("tasks", {"tasks": value}, "tasks", "valid dictionary") for value in (None, [], 1, "x")],
    *[
        (name, {"tasks": {name: value}}, f"tasks.{name}", "greater than or equal to 1")
        for name in ("count", "gpus")
        for value in (0, -1, -HUGE)
    ],
    *[
        (name, {"tasks": {name: value}}, f"tasks.{name}", INTEGER)
        for name in ("count", "gpus")
        for value in (True, 1.0, "2", None, float("nan"))
    ],
    ("count", {"tasks": {"count": 1025}}, "tasks.count", "less than or equal to 1024"),
    ("count", {"tasks": {"count": HUGE}}, "tasks.count", "less than or equal to 1024"),
    ("gpus", {"tasks": {"gpus": 65}}, "tasks.gpus", "less than or equal to 64"),
    ("gpu_models", {"tasks": {"gpu_models": "H100"}}, "tasks.gpu_models", "valid list"),
    ("gpu_models", {"tasks": {"gpu_models": [""]}}, "tasks.gpu_models.0", "at least 1 character"),
    ("gpu_models", {"tasks": {"gpu_models": ["a\0"]}}, "tasks.gpu_models.0", "NUL"),
    ("gpu_models", {"tasks": {"gpu_models": ["x"] * 33}}, "tasks.gpu_models", "at most 32 items"),
    *[
        ("cpus", {"tasks": {"cpus": value}}, "tasks.cpus", CPU_RULE)
        for value in (0, -1, 4097, HUGE, True, "4", float("nan"), float("inf"), float("-inf"), 5e-324, [])
    ],
    *[
        ("memory", {"tasks": {"memory": value}}, "tasks.memory", "expected a size")
        for value in (0, -1, HUGE, True, 1.5, "1e400GiB", "inf", "-1GiB", "0GiB", "9" * 5000, [], {})
    ],
    # run
    ("run", {"run": "ls -l"}, "run", "valid dictionary"),
    ("command", {"run": {"command": "ls -l"}}, "run.command", "valid list"),
    ("command", {"run": {"command": []}}, "run.command", "at least 1 item"),
    ("command", {"run": {"command": [""]}}, "run.command", "name of a program"),
    ("command", {"run": {"command": [1]}}, "run.command.0", "valid string"),
    ("command", {"run": {"command": ["x", "a\0b"]}}, "run.command.1", "NUL"),
    ("command", {"run": {"command": ["x", "\ud800"]}}, "run.command.1", "surrogates"),
    ("command", {"run": {"command": ["x", "a" * (MAX_ARGUMENT_BYTES + 1)]}}, "run.command.1", "131071 bytes"),
    ("command", {"run": {"command": ["x", "é" * 65_536]}}, "run.command.1", "131071 bytes"),
    ("command", {"run": {"command": ["x"] * 4097}}, "run.command", "at most 4096 items"),
    *[
        ("env", {"run": {"env": {value: "1"}}}, f"run.env.{value}.[key]", "letters, digits and '_'")
        for value in ("", "1A", "A-B", "A=B", "A B", "A\0", "É")
    ],
    ("env", {"run": {"env": {"YARD_JOB": "1"}}}, "run.env.YARD_JOB.[key]", "set by gpuyard"),
    ("env", {"run": {"env": {"A": 1}}}, "run.env.A", "valid string"),
    ("env", {"run": {"env": {"A": "\0"}}}, "run.env.A", "NUL"),
    ("env", {"run": {"env": {"A": "\udfff"}}}, "run.env.A", "surrogates"),
    ("env", {"run": {"env": {"A": "x" * MAX_ARGUMENT_BYTES}}}, "run.env", "131071 bytes together"),
    *[
        ("workdir", {"run": {"workdir": value}}, "run.workdir", "absolute path without '..'")
        for value in ("", "a", "~", "./a", "/a/../b", "/..", "../a")
    ],
    ("workdir", {"run": {"workdir": "/a\0"}}, "run.workdir", "NUL"),
    # limits, retry, labels
    *[
        ("max_run_time", {"limits": {"max_run_time": value}}, "limits.max_run_time", "expected a duration")
        for value in (0, -1, HUGE, True, 1e-300, float("nan"), float("inf"), "0s", "90", "-1s", "1e9h", [], {})
    ],
    ("max_attempts", {"retry": {"max_attempts": 0}}, "retry.max_attempts", "greater than or equal to 1"),
    ("max_attempts", {"retry": {"max_attempts": 21}}, "retry.max_attempts", "less than or equal to 20"),
    ("max_attempts", {"retry": {"max_attempts": True}}, "retry.max_attempts", INTEGER),
    ("labels", {"labels": {"A/B": "x"}}, "labels.A/B.[key]", NAME_RULE),
    ("labels", {"labels": {"a": 1}}, "labels.a", "valid string"),
    ("labels", {"labels": {"a": "x" * 257}}, "labels.a", "at most 256 characters"),
    ("labels", {"labels": {f"l{n}": "" for n in range(65)}}, "labels", "at most 64 items"),
    # fields of later versions, and mistakes
    ("unknown", {"tolerations": []}, "tolerations", "unknown field"),
    ("unknown", {"tasks": {"mig": "1g.10gb"}}, "tasks.mig", "unknown field"),
    ("unknown", {"run": {"image": "x"}}, "run.image", "unknown field"),
    ("unknown", {"limits": {"max_price": 1}}, "limits.max_price", "unknown field"),
]


@pytest.mark.parametrize(
    ("patch", "field", "message"),
    [case[1:] for case in BAD_FIELDS],
    ids=[f"{case[0]}-{repr(case[1])[:40]}" for case in BAD_FIELDS],
)
def test_a_bad_field_names_itself_and_what_is_valid(patch: dict[str, Any], field: str, message: str) -> None:
    errors = refused(document(**patch))
    assert [error["field"] for error in errors] == [field]
    assert message in errors[0]["message"]


@pytest.mark.parametrize(("missing", "field"), [("name", "name"), ("run", "run")])
def test_a_missing_field_is_named(missing: str, field: str) -> None:
    data = document()
    del data[missing]
    assert refused(data)[0]["field"] == field


@pytest.mark.parametrize("data", [None, [], "x", 1, {1: 2}, {"\ud800": 1}, {}])
def test_what_is_no_document_at_all(data: Any) -> None:
    answer = json.dumps(refused(data), ensure_ascii=False)
    assert answer.encode()  # the answer itself must be able to travel


def test_every_bad_field_is_named_at_once() -> None:
    errors = refused(document(name="A", priority=True, tasks={"gpus": 0, "cpus": True}))
    assert {error["field"] for error in errors} == {"name", "priority", "tasks.gpus", "tasks.cpus"}


def test_json_numbers_that_are_no_numbers_are_refused() -> None:
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
        text = json.dumps(document(tasks={"cpus": "LITERAL"})).replace('"LITERAL"', literal)
        with pytest.raises(ValidationError, match=CPU_RULE):
            JobDocument.model_validate_json(text)


def test_defaults_are_one_task_with_one_gpu() -> None:
    spec = JobDocument.model_validate(document()).to_spec()
    assert (spec.project, spec.queue, spec.tier, spec.priority) == ("default", "default", Tier.TRAINING, 0)
    assert (spec.tasks.count, spec.tasks.gpus, spec.tasks.total_gpus) == (1, 1, 1)
    assert (spec.tasks.cpus, spec.tasks.memory_bytes, spec.max_run_seconds, spec.max_attempts) == (None, None, None, 1)


def test_what_people_write_arrives_as_exact_values() -> None:
    data = document(
        tier="batch",
        tasks={"count": 2, "gpus": 8, "gpu_models": ["H100"], "cpus": 0.5, "memory": "1.5GiB"},
        run={"env": {"SEED": "7"}, "workdir": "/srv/train"},
        limits={"max_run_time": "1h30m"},
        retry={"max_attempts": 3},
        labels={"team": "vision ✓"},
    )
    spec = JobDocument.model_validate(data).to_spec()
    assert spec.tier is Tier.BATCH
    assert (spec.tasks.total_gpus, spec.tasks.gpu_models, spec.tasks.cpus) == (16, ("H100",), 0.5)
    assert (spec.tasks.memory_bytes, spec.max_run_seconds, spec.max_attempts) == (3 * 2**29, 5400.0, 3)
    assert (spec.run.env, spec.run.workdir, spec.labels) == ({"SEED": "7"}, "/srv/train", {"team": "vision ✓"})


names = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
documents = st.fixed_dictionaries(
    {
        "name": names,
        "run": st.fixed_dictionaries(
            {"command": st.lists(texts.filter(bool), min_size=1, max_size=4)},
            optional={
                "env": st.dictionaries(st.from_regex(r"[A-X][A-Z0-9_]{0,10}", fullmatch=True), texts, max_size=3),
                "workdir": st.just("/srv/data"),
            },
        ),
    },
    optional={
        "project": names,
        "queue": names,
        "tier": st.sampled_from([tier.value for tier in Tier]),
        "priority": st.integers(-1000, 1000),
        "tasks": st.fixed_dictionaries(
            {},
            optional={
                "count": st.integers(1, 1024),
                "gpus": st.integers(1, 64),
                "gpu_models": st.lists(texts.filter(bool), max_size=3),
                "cpus": st.one_of(st.integers(1, 4096), st.floats(0.001, 4096)),
                "memory": st.one_of(st.integers(1, 2**50), st.sampled_from(["1GiB", "512 MB", "1.5TiB"])),
            },
        ),
        "limits": st.fixed_dictionaries(
            {}, optional={"max_run_time": st.one_of(st.floats(0.001, 1e6), st.sampled_from(["1h30m", "250ms"]))}
        ),
        "retry": st.fixed_dictionaries({"max_attempts": st.integers(1, 20)}),
        "labels": st.dictionaries(names, texts, max_size=3),
    },
)


@given(documents)
def test_a_document_survives_its_own_json(data: dict[str, Any]) -> None:
    first = JobDocument.model_validate(data)
    again = JobDocument.model_validate_json(json.dumps(first.to_json_dict()))
    assert again == first
    assert again.to_spec() == first.to_spec()


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = ["name", "project", "queue", "tier", "priority", "tasks", "run", "limits", "retry", "labels", "other"]


@given(st.one_of(anything, st.dictionaries(st.sampled_from(FIELDS), anything)))
def test_anything_is_either_a_document_or_a_validation_error(data: Any) -> None:
    try:
        accepted = JobDocument.model_validate(data)
    except ValidationError as error:
        problems = field_errors(list(error.errors()))
    else:
        problems = []
        assert accepted.to_spec().name == data["name"]
    assert all(item["message"] for item in problems)
