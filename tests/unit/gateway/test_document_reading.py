"""Reading documents: what both forms accept, and what is refused before anything is built from it."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_gateway.document_reading import MAX_DEPTH, read_json, read_yaml
from yard_runtime.http import Problem


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def said(text: str | bytes, reader: Any) -> str:
    with pytest.raises(Problem) as caught:
        reader(text.encode() if isinstance(text, str) else text)
    assert caught.value.status == 422
    return str(caught.value.body["errors"][0]["message"])


@pytest.mark.parametrize("reader", [read_json, read_yaml])
def test_the_deepest_document_is_read_and_one_level_more_is_not(reader: Any) -> None:
    assert reader(nested(MAX_DEPTH).encode()) == json.loads(nested(MAX_DEPTH))
    assert "levels deep" in said(nested(MAX_DEPTH + 1), reader)


def test_brackets_in_text_are_not_depth() -> None:
    text = json.dumps({"run": "[" * 100 + '\\"' + "{" * 100})
    assert read_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize("reader", [read_json, read_yaml])
def test_a_byte_order_mark_is_no_part_of_the_document(reader: Any) -> None:
    assert reader(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_plain)
def test_json_is_read_as_what_it_says_or_refused_for_a_nul(value: Any) -> None:
    text = json.dumps(value)
    try:
        found = read_json(text.encode())
    except Problem:
        assert "\\u0000" in text
    else:
        assert found == value


@given(st.binary(max_size=200))
def test_no_bytes_break_a_reader(body: bytes) -> None:
    """Any other exception than a Problem would be an answer 500."""
    for reader in (read_json, read_yaml):
        with suppress(Problem):
            reader(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "anchors and aliases"),
        ("a: !!str 1", "tags"),
        ("a: !<tag:yaml.org,2002:python/name:os.system> x", "tags"),
        ("%TAG !e! tag:example.com,2026:\n---\na: !e!x 1", "tags"),
        ("<<: {a: 1}", "merge keys"),
        ("a: 1\n...\n---\nb: 1", "more than one"),
        ("a: {b: 1, b: 2}", "twice"),
        ("? {a: 1}\n: b", "a key must be text"),
        ("{a: 1}: b", "a key must be text"),
        ("1: a", "must be text"),
        ("null: a", "must be text"),
        ("a: [", "not YAML"),
        ("a: 'x", "not YAML"),
        ("", "empty"),
        ("a: .nan", "finite"),
        ('a: "\\ud800"', "invalid Unicode"),
    ],
)
def test_yaml_that_does_more_than_say_something(text: str, message: str) -> None:
    assert message in said(text, read_yaml)


def test_the_same_key_in_different_objects_is_fine() -> None:
    assert read_yaml(b"a: {n: 1}\nb: {n: 2}\nc: [{n: 3}, {n: 4}]\nn: a\n") == {
        "a": {"n": 1},
        "b": {"n": 2},
        "c": [{"n": 3}, {"n": 4}],
        "n": "a",
    }


def test_the_place_of_a_mistake_is_told() -> None:
    assert "line 2, column 1" in said("a: 1\na: 2", read_yaml)
    assert "line 2, column" in said('{"a": 1,\n x}', read_json)
    assert "'a'" in said('{"a": 1, "a": 2}', read_json)
