"""One instance per folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yard_domain.errors import Permanent
from yard_runtime.instance_lock import InstanceLock, InstanceRunning

HOLDER = """
import pathlib, sys
from yard_runtime.instance_lock import InstanceLock
InstanceLock(pathlib.Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_instance_is_told_who_holds_the_folder_until_that_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "yard.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InstanceRunning, match=rf"{tmp_path} is in use by process {holder.pid}") as error:
            InstanceLock(path).acquire()
        assert error.value.pid == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    with InstanceLock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "yard.lock"
    with InstanceLock(path), pytest.raises(InstanceRunning):
        InstanceLock(path).acquire()
    with InstanceLock(path):
        pass


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "yard.lock"
    with InstanceLock(path):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with InstanceLock(path):
            assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="cannot be written"):
        InstanceLock(tmp_path / "absent" / "up.lock").acquire()
