"""From a request body's bytes to a plain value, for input that may be hostile.

JSON and YAML are held to the same rules: UTF-8, one document, at most `MAX_DEPTH` levels, no duplicate keys, no NUL, no
lone surrogates, only finite numbers. YAML is first read as a stream of events, so that anchors, aliases, tags and merge
keys are refused before anything is built from them: a document says what it says, it does not compute.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml import events

from yard_runtime.http import Problem

MAX_DEPTH = 32

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The closing quote is optional: a string that never ends is one token, not one try from each of its characters.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_UNSAFE_TEXT = re.compile("[\0\ud800-\udfff]")
_MERGE_KEY = "<<"


def malformed(message: str, *, field: str = "(document)") -> Problem:
    """422: these bytes are not a document of the form they claim."""
    return Problem(422, "Invalid document", message, errors=[{"field": field, "message": message}])


def read_json(body: bytes) -> Any:
    """The value of a JSON text. Raises Problem 422."""
    text = _decode(body)
    _refuse_deep_json(text)
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise malformed(f"nested more than {MAX_DEPTH} levels deep") from None
    except json.JSONDecodeError as error:
        raise malformed(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise malformed(f"not JSON: {error}") from None
    if "\\u" in text:  # only an escape can bring in what valid UTF-8 cannot
        _refuse_unsafe(value, "")
    return value


def read_yaml(body: bytes) -> Any:
    """The value of a YAML text. Raises Problem 422."""
    text = _decode(body)
    try:
        _check_yaml_events(yaml.parse(text, Loader=_LOADER))
        value = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, C or Python
    except yaml.MarkedYAMLError as error:
        where = f" at {_place(error.problem_mark)}" if error.problem_mark is not None else ""
        raise malformed(f"not YAML: {error.problem or error.context}{where}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise malformed(f"not YAML: {str(error).splitlines()[0]}") from None
    _refuse_unsafe(value, "")
    return value


def _decode(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"not UTF-8: invalid byte at position {error.start}") from None
    if "\0" in text:
        raise malformed("contains a NUL character")
    return text.removeprefix("\ufeff")


def _refuse_deep_json(text: str) -> None:
    """Before parsing: the parser recurses."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise malformed(f"nested more than {MAX_DEPTH} levels deep")
        elif mark in ("]", "}"):
            depth -= 1


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise malformed(f"the key {_shown(key)} appears twice in one object")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise malformed(f"{name} is not a number that JSON has")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise malformed(f"the number {text[:40]} is too large")
    return number


def _refuse_unsafe(value: Any, path: str) -> None:
    """What no field may contain, keys included. Depth is bounded already."""
    if isinstance(value, str):
        if _UNSAFE_TEXT.search(value):
            raise malformed("contains a NUL character or half of a surrogate pair", field=path or "(document)")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise malformed("must be a finite number", field=path or "(document)")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                # Not the key itself: a number of thousands of digits cannot be written out.
                raise malformed(
                    f"a key is {type(key).__name__}, but must be text; put it in quotes", field=path or "(document)"
                )
            if _UNSAFE_TEXT.search(key):
                raise malformed(
                    "a key contains a NUL character or half of a surrogate pair", field=path or "(document)"
                )
            _refuse_unsafe(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_unsafe(item, f"{path}.{number}" if path else str(number))


class _Mapping:
    """An open mapping while its events go by: keys and values alternate."""

    __slots__ = ("expects_key", "keys")

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.expects_key = True


def _check_yaml_events(stream: Iterator[Any]) -> None:
    documents = 0
    open_nodes: list[_Mapping | None] = []  # None: a sequence
    for event in stream:
        if isinstance(event, events.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise malformed(f"more than one YAML document; the second begins at {_place(event.start_mark)}")
        elif isinstance(event, events.NodeEvent):
            _check_node(event)
            parent = open_nodes[-1] if open_nodes else None
            if parent is not None:
                _check_key(event, parent)
            if isinstance(event, events.CollectionStartEvent):
                open_nodes.append(_Mapping() if isinstance(event, events.MappingStartEvent) else None)
                if len(open_nodes) > MAX_DEPTH:
                    raise malformed(f"nested more than {MAX_DEPTH} levels deep at {_place(event.start_mark)}")
        elif isinstance(event, events.CollectionEndEvent):
            open_nodes.pop()
    if documents == 0:
        raise malformed("empty; expected a job document")


def _check_node(event: Any) -> None:
    if isinstance(event, events.AliasEvent) or event.anchor is not None:
        raise malformed(f"anchors and aliases are not accepted (at {_place(event.start_mark)})")
    if event.tag is not None:
        raise malformed(f"tags such as {_shown(event.tag)} are not accepted (at {_place(event.start_mark)})")


def _check_key(event: Any, parent: _Mapping) -> None:
    if parent.expects_key:
        if not isinstance(event, events.ScalarEvent):
            raise malformed(f"a key must be text (at {_place(event.start_mark)})")
        if event.value == _MERGE_KEY:
            raise malformed(f"merge keys are not accepted (at {_place(event.start_mark)})")
        if event.value in parent.keys:
            raise malformed(f"the key {_shown(event.value)} appears twice (at {_place(event.start_mark)})")
        parent.keys.add(event.value)
    parent.expects_key = not parent.expects_key


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
