"""The keeper's log: what a crash or a full disk can do to it."""

import os
from pathlib import Path

import pytest

from yard_agent.keeper.task_log import TaskLog

RECORDS = [{"r": "intent", "id": f"a{n}", "boot": "b"} for n in range(3)]


@pytest.fixture
def log(tmp_path: Path) -> TaskLog:
    made = TaskLog(str(tmp_path / "keeper.log"))
    made.rewrite([])
    return made


def test_what_is_appended_is_read_back(log: TaskLog) -> None:
    log.append(RECORDS[:1])
    log.append(RECORDS[1:])
    assert log.read() == RECORDS
    assert log.size_bytes == Path(log.path).stat().st_size


def test_a_missing_file_is_an_empty_log(tmp_path: Path) -> None:
    assert TaskLog(str(tmp_path / "absent")).read() == []


@pytest.mark.parametrize("tail", [b'{"r":"in', b"\0\0\0\0", b'"text"\n', b"{}\n", b"\xff\n"])
def test_what_is_no_record_is_left_out(log: TaskLog, tail: bytes) -> None:
    log.append(RECORDS)
    with open(log.path, "ab") as file:
        file.write(tail)
    assert log.read() == RECORDS


def test_a_failed_append_leaves_the_file_as_it_was(log: TaskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(RECORDS[:1])

    def disk_full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", disk_full)
        with pytest.raises(OSError, match="No space"):
            log.append(RECORDS[1:])
    assert log.read() == RECORDS[:1]
    log.append(RECORDS[2:])
    assert log.read() == [RECORDS[0], RECORDS[2]]


def test_a_rewrite_replaces_all_and_appends_go_on_in_the_new_file(log: TaskLog) -> None:
    log.append(RECORDS)
    log.rewrite(RECORDS[:1])
    log.append(RECORDS[2:])
    assert log.read() == [RECORDS[0], RECORDS[2]]
    assert list(Path(log.path).parent.iterdir()) == [Path(log.path)]
    assert Path(log.path).stat().st_mode & 0o777 == 0o600


def test_it_is_overgrown_once_it_is_mostly_void(log: TaskLog) -> None:
    assert not log.overgrown
    log.append(RECORDS * 10_000)
    assert log.overgrown
    log.rewrite(RECORDS * 10_000)
    assert not log.overgrown, "what must stay does not count"
