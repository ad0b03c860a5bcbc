"""One partition between what was handed out and what is done. No I/O."""

from collections import deque
from dataclasses import dataclass

from yard_client.events.position import REMEMBERED_IDS, Position


@dataclass(slots=True)
class _Step:
    """One record that was handed out or passed over."""

    following: int
    source: str
    sequence: int | None
    id: str
    done: bool


class PartitionProgress:
    """Records are taken in order; they are done in order, for a position can only say "everything before"."""

    def __init__(self, position: Position) -> None:
        self._offset = position.offset
        self._sequences = dict(position.sequences)
        self._ids = deque(position.ids, maxlen=REMEMBERED_IDS)
        self._seen_sequences = dict(position.sequences)
        self._seen_ids = set(position.ids)
        self._steps: deque[_Step] = deque()
        self.unsaved = False
        """Whether `position` moved since it was saved."""

    @property
    def position(self) -> Position:
        """Up to where everything is done."""
        return Position(self._offset, dict(self._sequences), tuple(self._ids))

    @property
    def next_offset(self) -> int:
        """The next record to take."""
        return self._steps[-1].following if self._steps else self._offset

    def take(self, offset: int, source: str, sequence: int | None, event_id: str) -> bool:
        """Take a record. False when it is a double of one taken before; then it is done already."""
        name = f"{source} {event_id}"
        double = sequence <= self._seen_sequences.get(source, -1) if sequence is not None else name in self._seen_ids
        if double:
            self.pass_over(offset)
            return False
        if sequence is not None:
            self._seen_sequences[source] = sequence
        else:
            self._seen_ids.add(name)
        self._steps.append(_Step(offset + 1, source, sequence, name, done=False))
        return True

    def pass_over(self, offset: int) -> None:
        """The record, taken or not, is done without anybody having seen it."""
        if self._steps and self._steps[-1].following == offset + 1:
            self._steps[-1].done = True
        else:
            self._steps.append(_Step(offset + 1, "", None, "", done=True))
        self._advance()

    def skip_to(self, offset: int) -> None:
        """There is no record before `offset` that was not taken."""
        if offset > self.next_offset:
            self.pass_over(offset - 1)

    def done_to(self, offset: int) -> None:
        """The record at `offset` is done, and all before it."""
        for step in self._steps:
            if step.following > offset + 1:
                break
            step.done = True
        self._advance()

    def position_after(self, offset: int) -> Position:
        """What `position` would be after `done_to(offset)`."""
        sequences, ids, following = dict(self._sequences), deque(self._ids, maxlen=REMEMBERED_IDS), self._offset
        for step in self._steps:
            if step.following > offset + 1:
                break
            following = step.following
            _note(step, sequences, ids)
        return Position(following, sequences, tuple(ids))

    def _advance(self) -> None:
        while self._steps and self._steps[0].done:
            step = self._steps.popleft()
            self._offset = step.following
            self.unsaved = True
            if len(self._ids) == self._ids.maxlen and step.sequence is None and step.id:
                self._seen_ids.discard(self._ids[0])
            _note(step, self._sequences, self._ids)


def _note(step: _Step, sequences: dict[str, int], ids: deque[str]) -> None:
    if step.sequence is not None:
        # Taken out first, so that sources stand in the order of their last event.
        sequences.pop(step.source, None)
        sequences[step.source] = step.sequence
    elif step.id:
        ids.append(step.id)
