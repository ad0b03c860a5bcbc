"""Every way in which a command can end: the right state, the right reason, no process left."""

import signal
from typing import Any

import psutil
import pytest

from support.installation import Installation, until

CASES = [
    pytest.param(["/no/such/command"], "failed", "command_not_found", None, id="command does not exist"),
    pytest.param(["/etc/hostname"], "failed", "command_not_executable", None, id="command cannot be executed"),
    pytest.param(["sh", "-c", "exit 1"], "failed", "exit_code", 1, id="exits 1"),
    pytest.param(["sh", "-c", "kill -SEGV $$"], "failed", "signal", None, id="killed by a signal"),
    pytest.param(
        ["sh", "-c", "trap '' TERM; (trap '' TERM; sleep 1000) & exit 0"],
        "succeeded",
        "exit_code",
        0,
        id="leaves a child that ignores SIGTERM",
    ),
    pytest.param(
        ["python3", "-c", "import sys\nfor _ in range(800): sys.stdout.buffer.write(bytes(range(256)) * 256)"],
        "succeeded",
        "exit_code",
        0,
        id="prints 50 MB of binary",
    ),
]


@pytest.mark.parametrize(("command", "state", "reason", "exit_code"), CASES)
def test_end(yard_up: Installation, command: list[str], state: str, reason: str, exit_code: int | None) -> None:
    job = yard_up.json("run", "--detach", "--", *command)
    yard_up.yard("wait", job["id"], check=False)
    seen = yard_up.json("describe", job["id"])
    assert (seen["state"], seen["exit_code"]) == (state, exit_code)
    assert seen["task_ends"][0]["reason"] == reason
    until(lambda: not _processes_of(yard_up, job["id"]), 20, "no process of the job is left")


def test_cancel_ends_a_tree_that_ignores_sigterm(yard_up: Installation) -> None:
    script = "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & while :; do sleep 1; done"
    job = yard_up.json("run", "--detach", "--", "sh", "-c", script)
    until(lambda: yard_up.json("describe", job["id"])["state"] == "running", 20, "the job runs")
    yard_up.yard("cancel", job["id"])
    until(lambda: yard_up.json("describe", job["id"])["state"] == "cancelled", 30, "the job is cancelled")
    until(lambda: not _processes_of(yard_up, job["id"]), 20, "no process of the job is left")
    free = [device for node in yard_up.json("nodes")["items"] for device in node["devices"]]
    assert all(device["job_id"] != job["id"] for device in free)


def test_max_run_time_ends_a_job(yard_up: Installation) -> None:
    job = yard_up.json("run", "--max-run-time", "1s", "--detach", "--", "sleep", "1000")
    yard_up.yard("wait", job["id"], check=False)
    assert yard_up.json("describe", job["id"])["state"] == "expired"


def test_a_failed_member_ends_the_gang(yard_up: Installation) -> None:
    script = "[ $RANK = 1 ] && exit 3; sleep 1000"
    job = yard_up.json("run", "--tasks", "2", "--detach", "--", "sh", "-c", script)
    yard_up.yard("wait", job["id"], check=False)
    seen = yard_up.json("describe", job["id"])
    assert (seen["state"], seen["exit_code"]) == ("failed", 3)
    until(lambda: not _processes_of(yard_up, job["id"]), 20, "no process of the job is left")


def test_retry_runs_a_second_attempt(yard_up: Installation) -> None:
    document = {
        "name": "second-time-lucky",
        "run": {"command": ["sh", "-c", "[ $YARD_ATTEMPT = 2 ]"]},
        "retry": {"max_attempts": 3},
    }
    with yard_up.client() as client:
        job: dict[str, Any] = client.post("/v1/jobs", json=document).raise_for_status().json()
    yard_up.yard("wait", job["id"], check=False)
    seen = yard_up.json("describe", job["id"])
    assert (seen["state"], seen["attempt"]) == ("succeeded", 2)


def test_a_signal_becomes_the_exit_code_of_run(yard_up: Installation) -> None:
    done = yard_up.yard("run", "--wait", "--", "sh", "-c", "kill -KILL $$", check=False)
    assert done.returncode == 128 + signal.SIGKILL


def _processes_of(yard_up: Installation, job_id: str) -> list[int]:
    found = []
    for pid in yard_up.marked_processes():
        try:
            if psutil.Process(pid).environ().get("YARD_JOB_ID") == job_id:
                found.append(pid)
        except psutil.Error:
            continue
    return found
