"""Positions of a follower of events: what counts as done, what is a double, and how it is kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_client.events import CheckpointUnreadable, FileCheckpoint, Place, Position
from yard_client.events.position import REMEMBERED_IDS
from yard_client.events.progress import PartitionProgress

A, B = Place("yard.jobs.events.v1", 0), Place("yard.jobs.events.v1", 1)


def taken(progress: PartitionProgress, *sequences: int, source: str = "s") -> list[bool]:
    return [progress.take(progress.next_offset, source, sequence, f"e{sequence}") for sequence in sequences]


def test_a_position_moves_only_over_what_is_done_from_the_front_on() -> None:
    progress = PartitionProgress(Position(10))
    assert taken(progress, 1, 2, 3) == [True, True, True]
    assert (progress.position, progress.next_offset, progress.unsaved) == (Position(10), 13, False)
    progress.done_to(11)
    assert progress.position == Position(12, {"s": 2})
    assert progress.unsaved
    progress.done_to(11)
    progress.done_to(5)
    assert progress.position == Position(12, {"s": 2})


def test_what_is_passed_over_counts_once_everything_before_it_is_done() -> None:
    progress = PartitionProgress(Position(0))
    taken(progress, 1)
    progress.pass_over(1)
    progress.skip_to(5)
    progress.skip_to(3)
    assert (progress.position.offset, progress.next_offset) == (0, 5)
    progress.done_to(0)
    assert progress.position == Position(5, {"s": 1})


def test_a_record_that_was_taken_and_then_passed_over_keeps_its_sequence() -> None:
    progress = PartitionProgress(Position(0))
    taken(progress, 7)
    progress.pass_over(0)
    assert progress.position == Position(1, {"s": 7})
    assert taken(progress, 7) == [False]
    assert progress.position == Position(2, {"s": 7})


def test_doubles_are_those_not_above_the_highest_taken_also_while_nothing_is_done() -> None:
    progress = PartitionProgress(Position(0, {"s": 5}))
    assert taken(progress, 5, 6, 4, 6, 9) == [False, True, False, False, True]
    assert taken(progress, 1, source="t") == [True]


def test_without_a_sequence_ids_tell_doubles_per_source_and_only_the_last_are_kept() -> None:
    progress = PartitionProgress(Position(0))

    def take(name: str, source: str = "s") -> bool:
        new = progress.take(progress.next_offset, source, None, name)
        progress.done_to(progress.next_offset - 1)
        return new

    assert [take("a"), take("a"), take("a", "t")] == [True, False, True]
    assert all(take(f"n{number}") for number in range(REMEMBERED_IDS - 2))
    assert not take("a")
    assert take("one more")
    assert len(progress.position.ids) == REMEMBERED_IDS
    assert take("a"), "the oldest was forgotten"


def test_the_position_after_an_event_is_what_it_will_be_when_that_is_done() -> None:
    progress = PartitionProgress(Position(0, {"s": 0}))
    taken(progress, 1)
    progress.pass_over(1)
    taken(progress, 2)
    assert progress.position_after(0) == Position(2 - 1, {"s": 1})
    later = progress.position_after(2)
    assert progress.position == Position(0, {"s": 0})
    progress.done_to(2)
    assert progress.position == later == Position(3, {"s": 2})


@given(
    st.lists(st.tuples(st.sampled_from("st"), st.integers(0, 6) | st.none(), st.sampled_from("abc")), max_size=30),
    st.data(),
)
def test_a_restart_anywhere_hands_out_what_was_not_done_and_no_double(
    records: list[tuple[str, int | None, str]], data: st.DataObject
) -> None:
    """The log is read twice, the second time from a position of the first, through text."""
    first = PartitionProgress(Position(0))
    whole = [
        offset for offset, (source, sequence, name) in enumerate(records) if first.take(offset, source, sequence, name)
    ]
    if not whole:
        return
    done = data.draw(st.sampled_from(whole))
    first.done_to(done)
    position = Position.from_document(json.loads(json.dumps(first.position.document())))
    second = PartitionProgress(position)
    rest = [
        offset
        for offset in range(position.offset, len(records))
        if second.take(offset, records[offset][0], records[offset][1], records[offset][2])
    ]
    assert [offset for offset in whole if offset <= done] + rest == whole


def test_a_note_carries_a_position_beside_an_offset() -> None:
    position = Position(7, {"yard/admission": 12}, ("s a", "s b"))
    assert Position.from_note(7, position.note(4000)) == position


@pytest.mark.parametrize("note", ["", "text", "[]", "3", "null", '{"sequences": 3, "ids": []}', '{"ids": [1]}'])
def test_a_note_of_another_tool_says_nothing(note: str) -> None:
    assert Position.from_note(7, note) == Position(7)


def test_a_note_that_is_too_long_leaves_out_ids_first_and_the_oldest_sources() -> None:
    sources = {f"yard/agent/node-{number}/journal": number for number in range(200)}
    position = Position(7, sources, tuple(f"s id-{number}" for number in range(REMEMBERED_IDS)))
    note = position.note(4000)
    assert len(note) <= 4000
    kept = Position.from_note(7, note)
    assert kept.ids == ()
    assert list(kept.sequences) == list(sources)[-len(kept.sequences) :]
    assert len(kept.sequences) > 50
    few = Position(7, {"s": 1}, position.ids).note(2000)
    assert Position.from_note(7, few).ids[-1] == position.ids[-1]
    assert Position.from_note(7, few).sequences == {"s": 1}


def test_sources_stand_in_the_order_of_their_last_event() -> None:
    progress = PartitionProgress(Position(0, {"old": 1, "s": 1}))
    taken(progress, 2, source="old")
    progress.done_to(0)
    assert list(progress.position.sequences) == ["s", "old"]


async def test_a_file_keeps_what_was_saved_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    file = FileCheckpoint(path)
    assert await file.load() == {}
    await file.save({A: Position(1, {"s": 4}, ("s a",)), B: Position(9)})
    await file.save({B: Position(10)})
    assert await FileCheckpoint(path).load() == {A: Position(1, {"s": 4}, ("s a",)), B: Position(10)}
    assert [entry.name for entry in tmp_path.iterdir()] == ["positions.json"]


async def test_saving_keeps_partitions_that_did_not_move(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    await FileCheckpoint(path).save({A: Position(1), B: Position(2)})
    again = FileCheckpoint(path)
    await again.load()
    await again.save({B: Position(3)})
    assert await FileCheckpoint(path).load() == {A: Position(1), B: Position(3)}


async def test_a_file_that_cannot_be_written_stays_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    file = FileCheckpoint(folder / "positions.json")
    await file.save({A: Position(1)})
    (folder / "positions.json").rename(tmp_path / "kept.json")
    folder.rmdir()
    with pytest.raises(OSError, match="there"):
        await file.save({A: Position(2)})
    assert await FileCheckpoint(tmp_path / "kept.json").load() == {A: Position(1)}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"topics": {"t": {"0": {"offset": -1, "sequences": {}, "ids": []}}}}',
        '{"topics": {"t": {"0": {"offset": 1, "sequences": {"s": "1"}, "ids": []}}}}',
        '{"topics": {"t": {"x": {"offset": 1, "sequences": {}, "ids": []}}}}',
        '{"topics": {"t": {"0": 1}}}',
        '{"topics": {"t": [1]}}',
        '{"topics": {"t": {"0": {"offset": true, "sequences": {}, "ids": []}}}}',
    ],
)
async def test_a_file_that_is_no_checkpoint_is_never_taken_for_an_empty_one(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "positions.json"
    path.write_text(content)
    with pytest.raises(CheckpointUnreadable, match="is no checkpoint"):
        await FileCheckpoint(path).load()
