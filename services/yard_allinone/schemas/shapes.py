"""The shape of a JSON Schema: what is left when words are taken away and references are followed.

Two schemas that accept the same documents in the same words have equal shapes, so shapes can be kept and compared.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Shape = dict[str, Any]
"""`types` (sorted names), and where they apply `properties` and `required`, `items`, `values` (of a map), `names` (of a
map's keys), `enum`, `default`, and the bounds."""

LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
FORMS = ("format", "pattern", "contentMediaType")

_PARTS = {"items": "items", "additionalProperties": "values", "propertyNames": "names"}
_WORDS = {"title", "description", "examples", "example", "$schema", "$id", "$defs", "deprecated"}
_MEANT = {"$ref", "type", "anyOf", "oneOf", "enum", "const", "properties", "required", "default", *_PARTS}
_MEANT |= {*LOWER_BOUNDS, *UPPER_BOUNDS, *FORMS}


def shape_of(schema: Mapping[str, Any], root: Mapping[str, Any], *, path: str = "") -> Shape:
    """The shape of `schema`, whose references point into `root`.

    Raises ValueError for a keyword that this module does not understand: what is not understood cannot be guarded.
    """
    unknown = [name for name in schema if name not in _MEANT | _WORDS and not name.startswith("x-")]
    if unknown:
        raise ValueError(f"{path or 'schema'}: keyword {', '.join(unknown)} is not known to the compatibility check")
    shape: Shape = {}
    if "$ref" in schema:
        shape = shape_of(_resolve(schema["$ref"], root), root, path=path)
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if alternatives:
        shape = _united([shape_of(one, root, path=path) for one in alternatives], path)
    if "type" in schema:
        named = schema["type"]
        shape["types"] = sorted(named if isinstance(named, list) else [named])
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        shape["enum"] = sorted(values, key=str)
        shape.setdefault("types", sorted({_type_of(value) for value in values}))
    if "properties" in schema:
        shape["properties"] = {
            name: shape_of(part, root, path=f"{path}.{name}" if path else name)
            for name, part in sorted(schema["properties"].items())
        }
        shape["required"] = sorted(schema.get("required", ()))
    for keyword, name in _PARTS.items():
        if isinstance(schema.get(keyword), Mapping):
            shape[name] = shape_of(schema[keyword], root, path=f"{path}[]")
    kept = (*LOWER_BOUNDS, *UPPER_BOUNDS, *FORMS, "default")
    return shape | {name: schema[name] for name in kept if name in schema}


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def _united(shapes: Iterable[Shape], path: str) -> Shape:
    """One of several; at most one of them may say more than its type, or nobody could tell what belongs to which."""
    united: Shape = {"types": []}
    for shape in shapes:
        united["types"] += shape.get("types", [])
        for name, value in shape.items():
            if name != "types" and united.setdefault(name, value) != value:
                raise ValueError(f"{path}: alternatives that differ in {name} are not known to the compatibility check")
    united["types"] = sorted(set(united["types"]))
    return united


def _type_of(value: Any) -> str:
    names = {bool: "boolean", str: "string", int: "integer", float: "number", type(None): "null"}
    return names[type(value)]
