"""Which events are wanted, and on which topics they travel. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from yard_events import types as _types
from yard_events.base import EventModel, models
from yard_events.registry import JOBS_EVENTS

KnownType = type[EventModel]

assert _types.__all__, "importing it fills the table of types"


@dataclass(frozen=True, slots=True)
class Selection:
    """None: all. Names of topics are the registry's."""

    topics: tuple[str, ...]
    types: frozenset[str] | None
    projects: frozenset[str] | None
    queues: frozenset[str] | None

    def wants_type(self, event_type: str) -> bool:
        return self.types is None or event_type in self.types

    def wants_project(self, project_id: str | None) -> bool:
        return self.projects is None or project_id in self.projects

    def wants_queue(self, data: EventModel | None) -> bool:
        """Events that say nothing of a queue are of none."""
        return self.queues is None or getattr(data, "queue", None) in self.queues


def select(
    *,
    topics: Sequence[str] | None,
    types: Sequence[str | KnownType] | None,
    projects: Collection[str] | None,
    queues: Collection[str] | None,
) -> Selection:
    """Topics follow from types where none are named, and are the lifecycle of jobs where neither is.

    Raises ValueError for a type whose topic nobody knows, and for strings where collections are meant.
    """
    for name, given in (("topics", topics), ("types", types), ("projects", projects), ("queues", queues)):
        if isinstance(given, str):
            raise ValueError(f"{name} must be a collection, for example [{given!r}]")
    names = None if types is None else [one if isinstance(one, str) else one.TYPE for one in types]
    if topics is None:
        topics = [JOBS_EVENTS] if names is None else _topics_of(names, models())
    if not topics:
        raise ValueError("no topics to read")
    return Selection(
        topics=tuple(dict.fromkeys(topics)),
        types=None if names is None else frozenset(names),
        projects=None if projects is None else frozenset(projects),
        queues=None if queues is None else frozenset(queues),
    )


def _topics_of(names: Sequence[str], known: Mapping[str, KnownType]) -> list[str]:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(
            f"type {', '.join(unknown)} is not known to this version; name its topic, or one of: "
            f"{', '.join(sorted(known))}"
        )
    return sorted({known[name].TOPIC for name in names})
