"""What may change after a release, and what breaks those who read or write what was released.

An event travels both ways between versions: new code reads old events, old code reads new ones. A request must stay as
easy to make as it was; an answer must say at least what it said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from yard_allinone.schemas.shapes import FORMS, LOWER_BOUNDS, UPPER_BOUNDS, Shape


class Break(StrEnum):
    """The kinds of change that are refused."""

    TYPE_REMOVED = "event type removed"
    TOPIC_CHANGED = "topic changed"
    KEY_CHANGED = "key changed"
    FIELD_REMOVED = "field removed"
    FIELD_REQUIRED = "new required field"
    FIELD_NO_LONGER_REQUIRED = "field no longer required"
    TYPE_CHANGED = "type changed"
    ENUM_NARROWED = "enum narrowed"
    BOUND_NARROWED = "bound narrowed"
    DEFAULT_CHANGED = "default changed"
    OPERATION_REMOVED = "operation removed"
    OPERATION_ID_CHANGED = "operation id changed"
    PARAMETER_REMOVED = "parameter removed"
    PARAMETER_REQUIRED = "parameter required"
    BODY_REMOVED = "body type removed"
    ANSWER_REMOVED = "answer removed"
    GOLDEN_UNREADABLE = "golden event unreadable"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """`where`: the event type or operation, and the path of the field in it."""

    rule: Break
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Direction:
    """`read`: the code reads what was released. `written`: what was released reads what the code writes."""

    read: bool
    written: bool


EVENT = Direction(read=True, written=True)
REQUEST = Direction(read=True, written=False)
ANSWER = Direction(read=False, written=True)


def compare(old: Shape, new: Shape, way: Direction, where: str) -> Iterator[Incompatibility]:
    """Everything that breaks between two shapes of one thing."""
    yield from _compare_types(old, new, way, where)
    yield from _compare_properties(old, new, way, where)
    for part in ("items", "values", "names"):
        if part in old and part in new:
            yield from compare(old[part], new[part], way, f"{where}[]")
    if way.read:
        yield from _compare_values(old, new, where)
    if not _same_default(old.get("default"), new.get("default")):
        message = f"{old.get('default')!r} became {new.get('default')!r}: its absence means something else now"
        yield Incompatibility(Break.DEFAULT_CHANGED, where, message)


def _compare_types(old: Shape, new: Shape, way: Direction, where: str) -> Iterator[Incompatibility]:
    before, after = set(old.get("types", ())), set(new.get("types", ()))
    # No type at all means any.
    refused = way.read and after and not (before and before <= after)
    surprising = way.written and before and not (after and after <= before)
    if refused or surprising:
        message = f"{_listed(before)} became {_listed(after)}"
        yield Incompatibility(Break.TYPE_CHANGED, where, message)
    for form in FORMS:
        if old.get(form) != new.get(form) and (way.written or form in new):
            message = f"{form} {old.get(form)!r} became {new.get(form)!r}"
            yield Incompatibility(Break.TYPE_CHANGED, where, message)


def _compare_properties(old: Shape, new: Shape, way: Direction, where: str) -> Iterator[Incompatibility]:
    before: Mapping[str, Shape] = old.get("properties", {})
    after: Mapping[str, Shape] = new.get("properties", {})
    needed_before, needed_after = set(old.get("required", ())), set(new.get("required", ()))
    for name in before.keys() - after.keys():
        yield Incompatibility(Break.FIELD_REMOVED, f"{where}.{name}", "a break is a new type")
    if way.read:
        for name in needed_after - needed_before:
            yield Incompatibility(Break.FIELD_REQUIRED, f"{where}.{name}", "what was released does not have it")
    if way.written:
        for name in (needed_before - needed_after) & after.keys():
            yield Incompatibility(Break.FIELD_NO_LONGER_REQUIRED, f"{where}.{name}", "readers count on it")
    for name in before.keys() & after.keys():
        yield from compare(before[name], after[name], way, f"{where}.{name}")


def _compare_values(old: Shape, new: Shape, where: str) -> Iterator[Incompatibility]:
    if "enum" in new:
        gone = [value for value in old.get("enum", ()) if value not in new["enum"]]
        if "enum" not in old or gone:
            message = f"{_listed(gone)} is refused" if gone else "any value was good before"
            yield Incompatibility(Break.ENUM_NARROWED, where, message)
    for bounds, sign in ((LOWER_BOUNDS, 1), (UPPER_BOUNDS, -1)):
        for bound in bounds:
            if bound in new and (bound not in old or sign * new[bound] > sign * old[bound]):
                message = f"{bound} {old.get(bound, 'none')} became {new[bound]}"
                yield Incompatibility(Break.BOUND_NARROWED, where, message)


def _same_default(old: Any, new: Any) -> bool:
    """A default that is an object grows with the optional fields of its type."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _same_default(value, new[name]) for name, value in old.items())
    return old == new


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in sorted(names, key=str)) or "anything"
