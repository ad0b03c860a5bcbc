"""What a task can put in the place of its output or leave in its scratch folder; none of it may harm the agent."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from yard_agent.output import read
from yard_agent.task_files import TaskFiles

IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "a pipe, whose opening would wait for a writer for ever": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file of somebody else": lambda path: path.symlink_to("/etc/hostname"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("put", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE.keys())
def test_what_is_no_regular_file_counts_as_no_output(tmp_path: Path, put: Callable[[Path], object]) -> None:
    files = TaskFiles(tmp_path)
    (tmp_path / "output").mkdir()
    put(Path(files.output("a1")))
    assert read(files.output("a1"), 0, 100) == b""
    assert files.output_bytes("a1") == 0


def test_a_file_in_the_place_of_the_output_folder_counts_as_no_output(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    (tmp_path / "output").write_text("x")
    assert read(files.output("a1"), 0, 100) == b""
    assert files.output_bytes("a1") == 0


def test_a_scratch_folder_nested_too_deep_to_remove_is_reported_and_harms_nobody(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    deep = Path(files.scratch("deep"))
    deep.mkdir(parents=True)
    here = os.getcwd()
    try:
        os.chdir(deep)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    Path(files.scratch("a2")).mkdir()
    assert [failure.split(":")[0] for failure in files.remove(["deep", "a2"])] == [files.scratch("deep")]
    assert not Path(files.scratch("a2")).exists()
    os.system(f"rm -rf {deep}")  # pytest could not remove it either


def test_a_file_where_a_folder_should_be_does_not_end_the_cleaning(tmp_path: Path) -> None:
    """A node's cleaning met a file named `output` and took the whole agent down with it."""
    (tmp_path / "output").write_text("not a folder")
    (tmp_path / "work" / "old").mkdir(parents=True)
    assert TaskFiles(tmp_path).leftovers(known=(), unchanged_since=float("inf")) == ["old"]
