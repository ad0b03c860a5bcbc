"""Shapes: words do not count, references are followed, and what is not understood is refused."""

from typing import Any

import pytest

from yard_allinone.schemas.shapes import shape_of

ROOT = {"$defs": {"Part": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}}}}

SAME = [
    ("words", {"type": "string"}, {"type": "string", "title": "T", "description": "d", "x-key": "k", "examples": [1]}),
    ("a list of types", {"type": ["string", "null"]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}),
    ("a reference", {"$ref": "#/$defs/Part"}, ROOT["$defs"]["Part"]),
    ("order of properties", {"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}),
    ("a constant", {"const": "x"}, {"enum": ["x"], "type": "string"}),
    ("a bound in an alternative", {"type": ["null", "string"], "maxLength": 4},
     {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "one", "other"), SAME, ids=[what for what, _, _ in SAME])
def test_the_same_said_otherwise_has_the_same_shape(what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert shape_of(one, ROOT) == shape_of(other, ROOT) != {}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "prefixItems": []}, "prefixItems"),
        ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "maxLength": 2}]}, "maxLength"),
        ({"properties": {"a": {"not": {}}}}, "a: keyword not"),
    ],
)
def test_what_cannot_be_compared_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of(schema, ROOT)
