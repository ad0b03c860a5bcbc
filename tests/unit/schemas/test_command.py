"""`make schemas`, `make schemas-check`, `make schemas-release`, as the Makefile runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from yard_allinone.schemas import released
from yard_allinone.schemas.__main__ import main

COMMITTED = Path(__file__).parents[3] / "schemas"


@pytest.fixture(scope="module")
def just_released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("schemas")
    assert main(["write", str(made)]) == 0
    assert main(["release", str(made)]) == 0
    return made


@pytest.fixture
def folder(just_released: Path, tmp_path: Path) -> Path:
    """`schemas/` as it was just released, to be spoilt."""
    return shutil.copytree(just_released, tmp_path / "schemas")


def errors(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def edit_released(folder: Path, name: str, **changes: object) -> None:
    kept = released.read(folder)
    kept["events"][name] |= changes
    (folder / released.FILE).write_text(released.text_of(kept))


def test_what_is_committed_is_what_the_code_says_and_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(COMMITTED)]) == 0, errors(capsys)
    assert released.read(COMMITTED)["events"], "nothing was released: run `make schemas-release`"


def test_the_same_code_writes_the_same_bytes_in_every_process(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    command = [sys.executable, "-m", "yard_allinone.schemas", "write", str(other)]
    subprocess.run(command, check=True, timeout=60, env=os.environ | {"PYTHONHASHSEED": "7"})
    written = {path.relative_to(other): path.read_bytes() for path in other.rglob("*") if path.is_file()}
    assert len(written) > 60
    assert written == {path: (folder / path).read_bytes() for path in written}


@pytest.mark.parametrize(
    ("path", "what"),
    [("events/yard.jobs.queued.v1.json", "missing"), ("asyncapi.yaml", "changed"), ("golden/old.json", "left over")],
)
def test_a_difference_is_named_with_what_to_do_and_writing_mends_it(
    folder: Path, path: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "missing":
        (folder / path).unlink()
    else:
        (folder / path).write_text("{}")
    assert main(["check", str(folder)]) == 1
    said = errors(capsys)
    assert f"{path}: {what}" in said
    assert "run `make schemas`" in said
    assert main(["write", str(folder)]) == 0
    assert main(["check", str(folder)]) == 0


def test_writing_leaves_alone_what_is_not_generated(folder: Path) -> None:
    before = (folder / released.FILE).read_text()
    (folder / "README.md").write_text("words")
    assert main(["write", str(folder)]) == 0
    assert (folder / "README.md").read_text() == "words"
    assert (folder / released.FILE).read_text() == before


def test_a_break_of_what_was_released_fails_the_check_and_cannot_be_released(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_released(folder, "yard.jobs.queued.v1", topic="yard.jobs.requests.v1")
    before = (folder / released.FILE).read_text()
    assert main(["check", str(folder)]) == 1
    said = errors(capsys)
    assert "yard.jobs.queued.v1: topic changed: yard.jobs.requests.v1 became yard.jobs.events.v1" in said
    assert "make a new type" in said
    assert main(["release", str(folder)]) == 1
    assert (folder / released.FILE).read_text() == before


def test_what_differs_from_the_code_cannot_be_released(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "openapi.json").write_text("{}")
    assert main(["release", str(folder)]) == 1
    assert "run `make schemas`" in errors(capsys)


def test_a_release_keeps_the_golden_events_of_earlier_ones(folder: Path) -> None:
    name = "yard.queues.state.v1"
    [golden] = released.read(folder)["events"][name]["golden"]
    earlier = golden | {"value": golden["value"] | {"gpu_quota": 1}}
    edit_released(folder, name, golden=[earlier])
    assert main(["release", str(folder)]) == 0
    assert released.read(folder)["events"][name]["golden"] == [earlier, golden]
    assert main(["release", str(folder)]) == 0
    assert released.read(folder)["events"][name]["golden"] == [earlier, golden]


def test_released_types_stand_on_lines_of_their_own(folder: Path) -> None:
    text = (folder / released.FILE).read_text()
    kept = json.loads(text)
    assert len(text.splitlines()) == len(kept["events"]) + len(kept["http"]) + 6


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none")]) == 2
    assert "no folder" in errors(capsys)
