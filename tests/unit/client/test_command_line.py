"""Small decisions of the command line: names, fields, times, exit codes; and what start-up does not import."""

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from yard_client.cli.documents import read_document
from yard_client.cli.job_views import event_name, event_text, reason_text
from yard_client.cli.outcome import exit_status
from yard_client.cli.output import age, printable
from yard_client.cli.submission import default_name
from yard_domain.names import is_name


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("python3", "python3"),
        ("/usr/bin/Python3.11", "python3.11"),
        ("./run me.sh", "run-me.sh"),
        ("a..b", "a-b"),
        ("-_.", "job"),
        ("", "job"),
        ("日本", "job"),
        ("x" * 100, "x" * 63),
        ("x" * 62 + "--y", "x" * 62),
    ],
)
def test_a_program_gives_a_valid_name(program: str, name: str) -> None:
    assert default_name(program) == name
    assert is_name(name)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("tasks.count=4", {"tasks": {"count": 4}}),
        ("tasks.gpu_models=[H100, A100]", {"tasks": {"count": 1, "gpu_models": ["H100", "A100"]}}),
        ("limits.max_run_time=1h", {"tasks": {"count": 1}, "limits": {"max_run_time": "1h"}}),
        ("name=a=b", {"tasks": {"count": 1}, "name": "a=b"}),
    ],
)
def test_fields_are_set(tmp_path: Any, setting: str, expected: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("tasks: {count: 1}\n")
    assert read_document(str(file), [setting]).value == expected


@pytest.mark.parametrize("setting", ["tasks.count", "=1", "a..b=1", "tasks.count.x=1", "x=[", "x=!!python/object:a"])
def test_a_bad_setting_is_a_usage_error(tmp_path: Any, setting: str) -> None:
    import typer

    file = tmp_path / "job.yaml"
    file.write_text("tasks: {count: 1}\n")
    with pytest.raises(typer.BadParameter):
        read_document(str(file), [setting])


def job(**fields: Any) -> Any:
    return {"state": "failed", "reason": None, "exit_code": None, "task_ends": [], **fields}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state": "succeeded", "exit_code": 0}, 0),
        ({"reason": "exit_code", "exit_code": 255}, 255),
        ({"reason": "exit_code", "exit_code": 256}, 1),
        ({"reason": "exit_code", "exit_code": 0}, 1),
        ({"reason": "signal", "task_ends": [{"signal": None}, {"signal": 15}]}, 143),
        ({"reason": "signal"}, 1),
        ({"reason": "reason_of_a_newer_server"}, 1),
        ({"state": "cancelled", "exit_code": 0}, 1),
    ],
)
def test_exit_status(fields: dict[str, Any], code: int) -> None:
    assert exit_status(job(**fields)) == code


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain é 日本", "plain é 日本"), ("\x1b[31m", "\\x1b[31m"), ("a\nb\t", "a\\nb\\t"), ("\ud800", "\\ud800")],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("since", "until", "shown"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:02:05.5Z", "2m05s"),
        ("2026-01-01T00:00:00+00:00", datetime(2026, 1, 2, tzinfo=UTC), "1d00h"),
        ("2026-01-01T00:00:05Z", "2026-01-01T00:00:00Z", "0.0s"),
        (None, "2026-01-01T00:00:00Z", ""),
        ("2026-01-01T00:00:00Z", None, ""),
    ],
)
def test_age(since: str | None, until: Any, shown: str) -> None:
    assert age(since, until) == shown


def test_events_in_words() -> None:
    event: Any = {"type": "yard.jobs.failed.v1", "data": {"reason": "exit_code", "exit_code": 3, "attempt": 2}}
    assert (event_name(event), event_text(event)) == ("jobs.failed", "attempt 2: The command exited. exit code 3")
    newer: Any = {"type": "yard.nodes.moved.v7", "data": {"rack": "r1", "list": [1], "node": "n"}}
    assert (event_name(newer), event_text(newer)) == ("nodes.moved", "rack=r1")
    assert reason_text("reason_of_a_newer_server") == "reason_of_a_newer_server"


def test_help_needs_nothing_heavy() -> None:
    """`yard --help` and the shell's completion stay quick because these are imported by the commands that use them."""
    script = "import sys, yard_client.cli.main as m; m.build_app(); print([n for n in {!r} if n in sys.modules])"
    heavy = ("httpx", "pydantic", "rich", "yaml", "asyncio", "sqlalchemy", "fastapi", "platformdirs")
    result = subprocess.run([sys.executable, "-c", script.format(heavy)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
