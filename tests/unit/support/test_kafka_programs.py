"""A machine that cannot run Kafka is told what to install."""

from pathlib import Path

import pytest

from support import kafka_programs as programs


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, empty; and nothing fetched yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(programs, "_CACHE", tmp_path / "cache")
    return folder


def program(path: Path, name: str, script: str) -> None:
    file = path / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def java(path: Path, version: str) -> None:
    program(path, "java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")


FETCHES = """
for argument do case $argument in -DoutputDirectory=*) folder=${argument#*=} ;; esac; done
/bin/mkdir -p "$folder" && echo jar >"$folder/kafka.jar"
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "need Java 17 or newer, and there is no `java`"),
        ("11.0.2", r"need Java 17 or newer; .*11\.0\.2"),
        ("1.8.0_402", r"need Java 17 or newer; .*1\.8\.0"),
        ("17.0.15", "with Maven, and there is no `mvn`"),
    ],
)
def test_what_is_missing_is_named_with_its_package(path: Path, version: str | None, said: str) -> None:
    if version is not None:
        java(path, version)
    with pytest.raises(programs.KafkaUnavailable, match=rf"(?s){said}.*openjdk-17-jre-headless maven.*YARD_TEST_KAFKA"):
        programs.kafka_programs()


def test_a_fetch_that_fails_says_why_and_leaves_nothing_to_run(path: Path) -> None:
    java(path, "21")
    program(path, "mvn", FETCHES + "\necho no route to the repository; exit 1")
    with pytest.raises(programs.KafkaUnavailable, match="no route to the repository"):
        programs.kafka_programs()
    program(path, "mvn", FETCHES)
    assert [each.name for each in programs.kafka_programs().jars.iterdir()] == ["kafka.jar"]


def test_jars_are_fetched_once(path: Path) -> None:
    java(path, "21")
    program(path, "mvn", FETCHES)
    first = programs.kafka_programs()
    (path / "mvn").unlink()
    assert programs.kafka_programs() == first
