"""`yard ps`, `describe`, `wait`, `cancel`, and how JOB is understood."""

import json
from typing import Any

import pytest

from support.gateway_double import GatewayDouble
from support.yard_command import Yard

QUOTA = {"reason": "quota", "reason_text": "The queue's GPU quota is in use.", "detail": "8 of 8 GPUs"}


def lines(output: bytes) -> list[list[str]]:
    return [line.split() for line in output.decode().splitlines()]


def test_ps_shows_what_waits_and_runs(yard: Yard, gateway: GatewayDouble) -> None:
    waiting, running, ended = gateway.add("w", **QUOTA), gateway.add("r"), gateway.add("e")
    gateway.running(running)
    gateway.end(ended)
    header, *rows = lines(yard("ps").stdout)
    assert header[:5] == ["ID", "NAME", "PROJECT", "QUEUE", "STATE"]
    assert [row[:5] for row in rows] == [
        [running, "r", "default", "default", "running"],
        [waiting, "w", "default", "default", "queued"],
    ]
    assert rows[1][-8:] == ["GPU", "quota", "is", "in", "use.", "8", "of", "8", "GPUs"][-8:]
    assert [row[0] for row in lines(yard("ps", "-a").stdout)[1:]] == [ended, running, waiting]


def test_a_long_reason_is_not_cut_where_there_is_no_terminal(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.add(**{**QUOTA, "detail": "x" * 500})
    assert len(yard("ps").stdout.splitlines()) == 2
    assert b"x" * 500 in yard("ps").stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--project", "vision"], ["a"]),
        (["--queue", "batch"], ["b"]),
        (["--state", "failed,cancelled"], ["d"]),
        (["-a", "--state", "failed", "--state", "queued"], ["d", "c", "b", "a"]),
        (["-l", "team=x"], ["c"]),
        (["--name", "b"], ["b"]),
        (["-a", "--limit", "2"], ["d", "c"]),
    ],
)
def test_ps_filters(yard: Yard, gateway: GatewayDouble, options: list[str], expected: list[str]) -> None:
    gateway.add("a", project="vision")
    gateway.add("b", queue="batch")
    gateway.add("c", labels={"team": "x"})
    gateway.end(gateway.add("d"), "failed", reason="exit_code", exit_code=1)
    result = yard("ps", "-o", "json", *options)
    assert [job["name"] for job in json.loads(result.stdout)["items"]] == expected


def test_ps_reads_all_pages_and_prints_exact_objects(yard: Yard, gateway: GatewayDouble) -> None:
    ids = [gateway.add("many") for _ in range(12)]
    gateway.change(lambda state: state.jobs[ids[0]].update(field_of_a_newer_server=[1]))
    result = yard("ps", "-o", "json", "--limit", "1000")
    expected = [{key: value for key, value in gateway.state.jobs[i].items() if key != "spec"} for i in reversed(ids)]
    assert json.loads(result.stdout) == {"items": expected}
    assert yard("ps", "-o", "name").stdout.decode().split() == ids[::-1]


def test_ps_of_nothing_says_so_on_stderr(yard: Yard) -> None:
    result = yard("ps")
    assert (result.returncode, result.stdout) == (0, b"")
    assert b"yard ps -a" in result.stderr


def test_wide_tells_more(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.running(gateway.add())
    output = yard("ps", "-o", "wide").stdout.decode()
    assert all(word in output for word in ("TIER", "training", "USER", "alice", "NODES", "node-1"))


def test_describe_tells_the_story(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add(labels={"team": "x"})
    gateway.running(job)
    end = {"task_rank": 0, "outcome": "failed", "reason": "signal", "exit_code": None, "signal": 9, "detail": "OOM"}
    gateway.end(job, "failed", reason="signal", task_ends=[end])
    output = yard("describe", job).stdout.decode()
    for part in (
        job, "failed: The command was killed by a signal.", "by alice", "1 × 1 GPU", "team=x", "node-1", "GPU-0",
        "jobs.running", "jobs.failed", "OOM", "2m10s", "Command:     true",
    ):  # fmt: skip
        assert part in output, part
    assert json.loads(yard("describe", job, "-o", "json").stdout) == gateway.state.jobs[job]


def test_names_cannot_drive_the_terminal(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add(**{**QUOTA, "detail": "\x1b[2Jgone\r\n\x07"})
    for output in (yard("ps").stdout, yard("describe", job).stdout):
        assert b"\x1b" not in output
        assert b"\x07" not in output
        assert b"\\x1b[2Jgone" in output


@pytest.mark.parametrize(
    ("ends", "code"), [(["succeeded", "succeeded"], 0), (["succeeded", "failed"], 1), (["cancelled", "succeeded"], 1)]
)
def test_wait_is_over_when_all_have_ended(yard: Yard, gateway: GatewayDouble, ends: list[str], code: int) -> None:
    jobs = [gateway.add(f"j{number}") for number in range(2)]
    process = yard.start("wait", *jobs)
    gateway.until(lambda state: any(request.path.endswith("/wait") for request in state.received))
    for job, state in zip(jobs, ends, strict=True):
        assert process.poll() is None
        gateway.end(job, state)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == code
    assert [line.split()[0] for line in out.decode().splitlines()] == jobs


def test_wait_gives_up_in_time(yard: Yard, gateway: GatewayDouble) -> None:
    result = yard("wait", "--timeout", "0.2", gateway.add(**QUOTA))
    assert result.returncode == 124
    assert "queued: The queue's GPU quota is in use." in result.stderr.decode()


def test_cancel_goes_on_after_one_that_has_ended(yard: Yard, gateway: GatewayDouble) -> None:
    ended, waiting = gateway.add("a"), gateway.add("b")
    gateway.end(ended)
    result = yard("cancel", ended, waiting)
    assert result.returncode == 4
    assert "already ended" in result.stderr.decode()
    assert gateway.state.jobs[waiting]["state"] == "cancelled"
    assert waiting in result.stdout.decode()


# --- what JOB means ---


def test_a_name_means_the_live_job_else_the_newest(yard: Yard, gateway: GatewayDouble) -> None:
    old, new = gateway.add("same"), gateway.add("same")
    gateway.end(new)
    assert json.loads(yard("describe", "same", "-o", "json").stdout)["id"] == old
    gateway.end(old)
    assert json.loads(yard("describe", "same", "-o", "json").stdout)["id"] == new


def test_a_name_of_several_live_jobs_is_refused_with_their_ids(yard: Yard, gateway: GatewayDouble) -> None:
    jobs = [gateway.add("same") for _ in range(2)]
    result = yard("cancel", "same")
    assert result.returncode == 4
    assert all(job in result.stderr.decode() for job in jobs)
    assert {job["state"] for job in gateway.state.jobs.values()} == {"queued"}


def test_the_beginning_of_an_id(yard: Yard, gateway: GatewayDouble) -> None:
    def add(state: Any, job_id: str) -> None:
        state.jobs[job_id] = {**state.jobs[first], "id": job_id, "name": "other"}

    first = gateway.add("first")
    gateway.change(lambda state: add(state, "job-01abcd" + "0" * 20))
    gateway.change(lambda state: add(state, "job-01abce" + "0" * 20))
    assert json.loads(yard("describe", "job-01abcd", "-o", "json").stdout)["id"] == "job-01abcd" + "0" * 20
    assert json.loads(yard("describe", "01abce", "-o", "json").stdout)["id"] == "job-01abce" + "0" * 20
    ambiguous = yard("describe", "job-01abc")
    assert ambiguous.returncode == 4
    assert "belong to 2 jobs" in ambiguous.stderr.decode()


@pytest.mark.parametrize("reference", ["nothing", "job-zzzz", "job-" + "9" * 26, "no/such", "../x", ""])
def test_an_unknown_job(yard: Yard, gateway: GatewayDouble, reference: str) -> None:
    gateway.add("something")
    result = yard("describe", reference)
    assert (result.returncode, result.stdout) == (4, b"")
    assert "Traceback" not in result.stderr.decode()
