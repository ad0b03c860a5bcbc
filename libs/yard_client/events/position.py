"""How far one partition is done, with what tells doubles from news, and its form as text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from yard_events.envelope import MAX_PUBLISH_SEQ

REMEMBERED_IDS = 256
"""Ids of events without a sequence number that are kept per partition."""


class Place(NamedTuple):
    """A partition of a topic, by the topic's whole name."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Position:
    """`offset`: the next record. `sequences`: the highest `yard_publishseq` done per `ce_source`. `ids`: the last
    events done that had no sequence, as `source id`, oldest first."""

    offset: int
    sequences: Mapping[str, int] = field(default_factory=dict[str, int])
    ids: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"offset": self.offset, "sequences": dict(self.sequences), "ids": list(self.ids)}

    @classmethod
    def from_document(cls, document: Any) -> "Position":
        """Raises ValueError when it is no position."""
        offset = _field(document, "offset")
        sequences, ids = _field(document, "sequences"), _field(document, "ids")
        if not _is_number(offset) or not isinstance(sequences, dict) or not isinstance(ids, list):
            raise ValueError("not a position")
        sources = cast(dict[str, Any], sequences)
        names = cast(list[Any], ids)
        if not all(map(_is_number, sources.values())) or not all(isinstance(name, str) for name in names):
            raise ValueError("not a position")
        return cls(offset, sources, tuple(names))

    def note(self, limit: int) -> str:
        """All but the offset as text of at most `limit` bytes, which Kafka keeps beside an offset.

        What does not fit is left out, ids first, the oldest first: a double of it would be taken for news.
        """
        ids = list(self.ids)
        sequences = dict(self.sequences)
        while True:
            text = json.dumps({"sequences": sequences, "ids": ids}, separators=(",", ":"))
            if len(text) <= limit:
                return text
            if ids:
                ids = ids[len(ids) // 2 + 1 :]
            else:
                # In order of their last event: see `PartitionProgress`.
                sequences = dict(list(sequences.items())[len(sequences) // 2 + 1 :])

    @classmethod
    def from_note(cls, offset: int, note: str) -> "Position":
        """A note that is not ours (another tool set the offset) tells nothing about doubles."""
        try:
            return cls.from_document({"offset": offset} | json.loads(note))
        except (ValueError, TypeError):
            return cls(offset)


def _field(document: Any, name: str) -> Any:
    if not isinstance(document, dict):
        raise ValueError("not a position")
    return cast(dict[str, Any], document).get(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PUBLISH_SEQ
