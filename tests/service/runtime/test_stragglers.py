"""Ending what an earlier supervisor left: only processes that are still the recorded ones."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from yard_runtime.process_identity import process_identity
from yard_runtime.stragglers import end_stragglers, pid_file, write_pid_file

WAITS = "import signal; print('up', flush=True); signal.pause()"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS


@contextmanager
def process(script: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("script", "killed", "ended_by"),
    [(WAITS, False, signal.SIGTERM), (IGNORES_SIGTERM, True, signal.SIGKILL)],
)
def test_a_recorded_process_is_ended(tmp_path: Path, script: str, killed: bool, ended_by: int) -> None:
    with process(script) as child:
        write_pid_file(pid_file(tmp_path, "engine"), child.pid)
        ended = end_stragglers(tmp_path, grace_seconds=5 if not killed else 0.1)
        assert [(one.name, one.pid, one.killed) for one in ended] == [("engine", child.pid, killed)]
        assert child.wait(timeout=10) == -ended_by
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_took_over_the_pid_is_left_alone(tmp_path: Path) -> None:
    with process(WAITS) as child:
        boot, _, ticks = (process_identity(child.pid) or "").partition(":")
        earlier = f"{boot}:{int(ticks) - 1}"
        pid_file(tmp_path, "engine").write_text(json.dumps({"pid": child.pid, "identity": earlier}))
        assert end_stragglers(tmp_path, grace_seconds=0.1) == []
        assert child.poll() is None


def test_a_process_from_before_a_reboot_is_left_alone(tmp_path: Path) -> None:
    with process(WAITS) as child:
        _, _, ticks = (process_identity(child.pid) or "").partition(":")
        pid_file(tmp_path, "engine").write_text(json.dumps({"pid": child.pid, "identity": f"another-boot:{ticks}"}))
        assert end_stragglers(tmp_path, grace_seconds=0.1) == []
        assert child.poll() is None


@pytest.mark.parametrize("content", ["", "{", "17", '{"pid": "many"}', '{"pid": 1}', '{"pid": 1, "identity": null}'])
def test_a_damaged_pid_file_is_removed_and_ends_nothing(tmp_path: Path, content: str) -> None:
    pid_file(tmp_path, "engine").write_text(content)
    assert end_stragglers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_has_no_stragglers(tmp_path: Path) -> None:
    assert end_stragglers(tmp_path / "run") == []


def test_a_run_folder_that_somebody_deleted_is_made_again(tmp_path: Path) -> None:
    """A supervisor whose folder was gone could never restart a child again."""
    path = pid_file(tmp_path / "run", "control")
    write_pid_file(path, os.getpid())
    assert json.loads(path.read_text())["pid"] == os.getpid()
