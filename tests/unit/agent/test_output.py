"""Reading a task's output while it is written, byte for byte."""

import asyncio
from pathlib import Path

import pytest

from yard_agent.output import follow, read

ALL_BYTES = bytes(range(256))


def test_read_takes_exact_bytes_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(ALL_BYTES)
    for offset, limit in ((0, 256), (0, 10), (250, 100), (256, 5), (1000, 5), (7, 0)):
        assert read(path, offset, limit) == ALL_BYTES[offset : offset + limit]
    assert read(tmp_path / "absent", 0, 10) == b""
    for offset, limit in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            read(path, offset, limit)


async def collect(path: Path, ended: asyncio.Event, offset: int = 0) -> bytes:
    return b"".join([data async for data in follow(path, offset, ended, interval_seconds=0.05, chunk_bytes=100)])


async def test_an_ended_output_is_read_whole_and_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(ALL_BYTES * 3)
    ended = asyncio.Event()
    ended.set()
    assert await collect(path, ended) == ALL_BYTES * 3
    assert await collect(path, ended, offset=700) == (ALL_BYTES * 3)[700:]
    assert await collect(tmp_path / "absent", ended) == b""


async def test_following_gets_what_comes_and_ends_with_the_last_bytes(tmp_path: Path) -> None:
    path, ended = tmp_path / "out", asyncio.Event()
    stream = follow(path, 0, ended, interval_seconds=0.05)
    reading = asyncio.create_task(anext(stream))  # before the file exists
    await asyncio.sleep(0)
    with path.open("ab", buffering=0) as file:
        file.write(b"one\0")
        async with asyncio.timeout(10):
            assert await reading == b"one\0"
            file.write(b"\xfftwo")
            assert await anext(stream) == b"\xfftwo"
            file.write(b"last")
            ended.set()
            assert [data async for data in stream] == [b"last"]


async def test_the_end_of_the_task_wakes_a_follower_without_waiting_for_the_interval(tmp_path: Path) -> None:
    ended = asyncio.Event()
    stream = follow(tmp_path / "out", 0, ended, interval_seconds=3600)
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    ended.set()
    async with asyncio.timeout(10):
        assert await reading is None
