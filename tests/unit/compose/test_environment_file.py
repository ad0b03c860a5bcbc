"""compose/.env: what it must hold, and the script that makes it."""

import base64
import re
import stat
import subprocess
from pathlib import Path

import pytest

from support.compose_stack import COMPOSE, VariableMissing, load, variables

SCRIPT = COMPOSE / "make-env"


def _read(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def _make(target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), str(target)], capture_output=True, text=True, timeout=20)


EXAMPLE = _read(COMPOSE / ".env.example")


def test_the_example_has_every_variable_and_no_secret() -> None:
    needed = {variable.name: variable.default or "" for variable in variables()}
    assert needed == EXAMPLE


def test_a_file_has_new_secrets_and_what_the_example_says(tmp_path: Path) -> None:
    made = _make(tmp_path / ".env")
    assert made.returncode == 0, made.stderr
    written = _read(tmp_path / ".env")
    assert written.keys() == EXAMPLE.keys()
    assert {name: value for name, value in written.items() if EXAMPLE[name]} == {n: v for n, v in EXAMPLE.items() if v}
    secrets = [value for name, value in written.items() if not EXAMPLE[name]]
    assert len(set(secrets)) == len(secrets) == 6
    for name, value in written.items():
        if not EXAMPLE[name] and name != "KAFKA_CLUSTER_ID":
            assert re.fullmatch("[0-9a-f]{64}", value), name
    load(written)  # nothing is missing


def test_the_clusters_id_is_one_that_kafkas_tools_take(tmp_path: Path) -> None:
    for number in range(5):
        assert _make(tmp_path / str(number)).returncode == 0
        cluster_id = _read(tmp_path / str(number))["KAFKA_CLUSTER_ID"]
        assert not cluster_id.startswith("-")
        assert len(base64.urlsafe_b64decode(cluster_id + "==")) == 16
        assert base64.urlsafe_b64encode(base64.urlsafe_b64decode(cluster_id + "==")).decode().rstrip("=") == cluster_id


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    _make(tmp_path / ".env")
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [".env"], "nothing is left beside it"


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_there_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / ".env"
    if kind == "file":
        target.write_text("MINE=1\n")
    else:
        target.symlink_to(tmp_path / "elsewhere")
    made = _make(target)
    assert made.returncode == 1
    assert "stays as it is" in made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env"]
    assert kind != "file" or target.read_text() == "MINE=1\n"


def test_of_two_that_run_at_once_one_writes(tmp_path: Path) -> None:
    command = ["sh", str(SCRIPT), str(tmp_path / ".env")]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(process.wait(20) for process in both) == [0, 1]
    load(_read(tmp_path / ".env"))


@pytest.mark.parametrize("name", sorted(name for name, value in EXAMPLE.items() if not value))
def test_a_secret_that_is_missing_is_told_with_what_to_do(tmp_path: Path, name: str) -> None:
    _make(tmp_path / ".env")
    with pytest.raises(VariableMissing, match=f"{name} is missing a value: is missing; run `sh compose/make-env`"):
        load(_read(tmp_path / ".env") | {name: ""})


def test_git_ignores_it() -> None:
    asked = ["git", "check-ignore", "--quiet", "compose/.env"]
    assert subprocess.run(asked, cwd=COMPOSE.parent).returncode == 0
    assert subprocess.run([*asked[:-1], "compose/.env.example"], cwd=COMPOSE.parent).returncode == 1
