"""Server-sent events in pieces of any size, and lines of a gang's output likewise."""

import json
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_client.cli.job_output import LONGEST_LINE_BYTES, JobOutput
from yard_client.errors import ServerFault
from yard_client.streams import EventFeed, LogPosition


def event(seq: int) -> dict[str, object]:
    return {"seq": seq, "type": "yard.jobs.queued.v1", "data": {"text": "é\n"}}


STREAM = b": keep-alive\n\n" + b"".join(
    f"id: {seq}\r\nevent: yard.jobs.queued.v1\r\ndata: {json.dumps(event(seq), ensure_ascii=False)}\r\n\r\n".encode()
    for seq in (1, 2)
) + b'id: 3\ndata: {"seq": 3,\ndata:"type": "x"}\n\nid: 4\ndata: {"seq": 4'  # fmt: skip


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_in_any_pieces(cuts: list[int]) -> None:
    feed = EventFeed(None)
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [one for start, end in pairwise(edges) for one in feed.feed(STREAM[start:end])]
    assert found == [event(1), event(2), {"seq": 3, "type": "x"}]
    assert feed.after == 3, "the fourth is not whole, so it is asked for again"


def test_a_new_connection_forgets_half_an_event() -> None:
    feed = EventFeed(7)
    response = httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"})
    assert list(feed.feed(b'data: {"seq": 8')) == []
    feed.opened(response)
    assert [one["seq"] for one in feed.feed(b'data: {"seq": 8}\n\n')] == [8]


def test_a_page_is_no_stream() -> None:
    with pytest.raises(ServerFault):
        EventFeed(None).opened(httpx.Response(200, headers={"content-type": "text/html"}))


@pytest.mark.parametrize(("header", "offset"), [({"x-yard-offset": "30"}, 30), ({}, 20), ({"x-yard-offset": "x"}, 20)])
def test_a_position_begins_where_the_server_says(header: dict[str, str], offset: int) -> None:
    position = LogPosition(20)
    position.opened(httpx.Response(200, headers=header))
    position.advance(b"abc")
    assert position.offset == offset + 3


chunks = st.lists(st.binary(max_size=20) | st.sampled_from([b"\n", b"a\nb", b"\r\n"]), max_size=20)


@given(chunks)
def test_the_output_of_one_task_is_its_bytes(pieces: list[bytes]) -> None:
    written: list[bytes] = []
    output = JobOutput(written.append, prefixed=False)
    task = output.task(0)
    for piece in pieces:
        task.feed(piece)
    task.end()
    assert b"".join(written) == b"".join(pieces)
    assert task.bytes_read == output.bytes_written == len(b"".join(pieces))


@given(chunks, chunks)
def test_lines_of_two_tasks_are_whole_and_marked(first: list[bytes], second: list[bytes]) -> None:
    written: list[bytes] = []
    output = JobOutput(written.append, prefixed=True, label="train")
    tasks = [output.task(0), output.task(1)]
    for turn in range(max(len(first), len(second))):
        for task, pieces in zip(tasks, (first, second), strict=True):
            task.feed(pieces[turn] if turn < len(pieces) else b"")
    for task in tasks:
        task.end()
    lines = b"".join(written).split(b"\n")
    assert lines.pop() == b""
    for rank, pieces in ((0, first), (1, second)):
        whole = b"".join(pieces)
        expected = whole.removesuffix(b"\n").split(b"\n") if whole else []
        mark = f"[train {rank}] ".encode()
        assert [line.removeprefix(mark) for line in lines if line.startswith(mark)] == expected
        assert tasks[rank].bytes_read == len(whole)


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    written: list[bytes] = []
    task = JobOutput(written.append, prefixed=True).task(0)
    for _ in range(100):
        task.feed(b"x" * 10_000)
    assert sum(map(len, written)) > 1_000_000 - 2 * LONGEST_LINE_BYTES
