"""`yard run` and `yard submit`: the job's bytes on stdout, its end as the exit code, everything else on stderr."""

import json
import signal
from typing import Any

import pytest

from support.gateway_double import GatewayDouble, end_job, start_job
from support.yard_command import Yard

ALL_BYTES = bytes(range(256)) * 40 + b"\xff\xfe no newline at the end"


def test_the_id_alone_is_printed_without_wait(yard: Yard, gateway: GatewayDouble) -> None:
    result = yard("run", "--gpus", "2", "--", "python3", "-c", "print(1)")
    (job_id,) = gateway.state.jobs
    assert (result.returncode, result.stdout.decode(), result.stderr) == (0, f"{job_id}\n", b"")


def test_every_option_reaches_the_document(yard: Yard, gateway: GatewayDouble) -> None:
    options = (
        "--gpus 2 --tasks 3 --name n1 --queue q1 --project p1 --tier batch --priority 7 --gpu-model H100"
        " --gpu-model A100 --cpus 1.5 --memory 2GiB -e A=1=2 -e INHERITED --workdir /tmp --max-run-time 1h30m"
        " --max-attempts 2 -l team=x -d"
    )
    result = yard("run", *options.split(), "--", "sh", "-c", "echo --gpus 9", INHERITED="yes")
    assert result.returncode == 0, result.stderr
    assert json.loads(gateway.state.received[-1].body) == {
        "name": "n1",
        "project": "p1",
        "queue": "q1",
        "tier": "batch",
        "priority": 7,
        "tasks": {"count": 3, "gpus": 2, "gpu_models": ["H100", "A100"], "cpus": 1.5, "memory": "2GiB"},
        "run": {"command": ["sh", "-c", "echo --gpus 9"], "env": {"A": "1=2", "INHERITED": "yes"}, "workdir": "/tmp"},
        "limits": {"max_run_time": "1h30m"},
        "retry": {"max_attempts": 2},
        "labels": {"team": "x"},
    }


def test_what_was_not_said_is_left_to_the_server(yard: Yard, gateway: GatewayDouble) -> None:
    yard("run", "/usr/bin/My Prog!")
    assert json.loads(gateway.state.received[-1].body) == {"name": "my-prog", "run": {"command": ["/usr/bin/My Prog!"]}}
    assert gateway.state.received[-1].headers["idempotency-key"]


def test_wait_streams_the_bytes_as_they_are(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    gateway.write(job_id, b"first\n")
    assert process.stdout
    assert process.stdout.read(6) == b"first\n"  # before the job ends
    gateway.write(job_id, ALL_BYTES)
    gateway.end(job_id, exit_code=0)
    out, err = process.communicate(timeout=15)
    assert (process.returncode, out) == (0, ALL_BYTES)
    assert job_id in err.decode()


def finish(gateway: GatewayDouble, state: str, **fields: Any) -> None:
    """Every submitted job runs at once, prints a line and ends so."""

    def on_submit(job: dict[str, Any]) -> None:
        start_job(gateway.state, job["id"])
        gateway.state.logs[job["id"], 1, 0].data = b"said\n"
        end_job(gateway.state, job["id"], state, **fields)

    gateway.on_submit = on_submit


def task_end(**fields: Any) -> dict[str, Any]:
    return {
        "task_rank": 0, "outcome": "failed", "reason": "exit_code", "exit_code": None, "signal": None, "detail": None,
        **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "fields", "code", "said"),
    [
        ("succeeded", {"exit_code": 0}, 0, "is submitted"),
        ("failed", {"reason": "exit_code", "exit_code": 3}, 3, "The command exited. Exit code 3."),
        ("failed", {"reason": "exit_code", "task_ends": [task_end(exit_code=77)]}, 77, "The command exited."),
        ("failed", {"reason": "signal", "task_ends": [task_end(reason="signal", signal=9)]}, 137, "killed by a signal"),
        ("failed", {"reason": "command_not_found", "detail": "nope"}, 1, "does not exist on the node. nope"),
        ("failed", {"reason": "keeper_lost"}, 1, "the exit code is unknown"),
        ("cancelled", {"reason": "cancelled", "exit_code": 143}, 1, "cancelled: Cancelled on request."),
        ("expired", {"reason": "max_run_time"}, 1, "expired: Stopped at its maximum run time."),
    ],
)
def test_exit_code_follows_the_job(
    yard: Yard, gateway: GatewayDouble, state: str, fields: dict[str, Any], code: int, said: str
) -> None:
    finish(gateway, state, **fields)
    result = yard("run", "--wait", "--", "true")
    assert (result.returncode, result.stdout) == (code, b"said\n")
    assert said in result.stderr.decode()


def test_quiet_says_only_what_went_wrong(yard: Yard, gateway: GatewayDouble) -> None:
    finish(gateway, "succeeded", exit_code=0)
    assert yard("run", "-q", "--wait", "--", "true").stderr == b""
    finish(gateway, "failed", reason="exit_code", exit_code=1)
    assert b"failed" in yard("run", "-q", "--wait", "--", "true").stderr


def test_wait_with_json_prints_the_ended_job(yard: Yard, gateway: GatewayDouble) -> None:
    finish(gateway, "failed", reason="exit_code", exit_code=4)
    result = yard("run", "--wait", "-o", "json", "--", "true")
    (job,) = gateway.state.jobs.values()
    assert (result.returncode, json.loads(result.stdout), result.stderr) == (4, job, b"")


def test_a_gang_shows_whole_lines_with_their_rank(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--tasks", "2", "--wait", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    for rank, data in ((0, b"be"), (1, b"one\ntwo\n"), (0, b"gin\nla"), (0, b"st")):
        gateway.write(job_id, data, rank=rank)
    gateway.end(job_id, exit_code=0)
    out, _ = process.communicate(timeout=15)
    assert sorted(out.splitlines()) == [b"[0] begin", b"[0] last", b"[1] one", b"[1] two"]
    assert out.endswith(b"\n")


def test_a_second_attempt_follows_the_first(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--max-attempts", "2", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    gateway.write(job_id, b"first\n")

    def fail_and_queue(state: Any) -> None:
        state.logs[job_id, 1, 0].ended = True
        state.jobs[job_id].update(state="queued", attempt=2, places=[], reason="retry")

    gateway.change(fail_and_queue)
    gateway.running(job_id, attempt=2)
    gateway.write(job_id, b"second\n", attempt=2)
    gateway.end(job_id, exit_code=0)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"first\nsecond\n")


def test_cancelled_before_it_started(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: any(request.path.endswith("/logs") for request in state.received))
    (job_id,) = gateway.state.jobs
    gateway.end(job_id, "cancelled", reason="cancelled")
    out, err = process.communicate(timeout=15)
    assert (process.returncode, out) == (1, b"")
    assert "Cancelled on request" in err.decode()


def test_a_waiting_job_says_why(yard: Yard, gateway: GatewayDouble) -> None:
    def blocked(job: dict[str, Any]) -> None:
        job.update(reason="quota", reason_text="The queue's GPU quota is in use.", detail="8 of 8")

    gateway.on_submit = blocked
    process = yard.start("run", "--wait", "--", "true")
    assert process.stderr
    lines = [process.stderr.readline().decode() for _ in range(2)]
    assert "queued: The queue's GPU quota is in use. 8 of 8" in lines[1]
    gateway.end(next(iter(gateway.state.jobs)))
    process.communicate(timeout=15)


def test_the_first_interrupt_cancels_the_job(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    gateway.write(job_id, b"x\n")
    assert process.stdout
    assert process.stdout.readline() == b"x\n"
    process.send_signal(signal.SIGINT)
    gateway.until(lambda state: state.jobs[job_id]["state"] == "cancelling")
    gateway.write(job_id, b"cleaning up\n")
    gateway.end(job_id, "cancelled", reason="cancelled")
    out, err = process.communicate(timeout=15)
    assert (process.returncode, out) == (130, b"cleaning up\n")
    assert "cancelling" in err.decode()
    assert "Traceback" not in err.decode()


def test_the_second_interrupt_leaves_the_job(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: any(request.path.endswith("/logs") for request in state.received))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    process.send_signal(signal.SIGINT)
    gateway.until(lambda state: state.jobs[job_id]["state"] == "cancelling")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert f"yard logs -f {job_id}" in err.decode()
    assert "Traceback" not in err.decode()
    assert gateway.state.jobs[job_id]["state"] == "cancelling"


def test_a_restart_of_the_gateway_loses_no_byte(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    gateway.write(job_id, b"before\n")
    assert process.stdout
    assert process.stdout.readline() == b"before\n"
    gateway.stop()
    gateway.start()
    gateway.write(job_id, ALL_BYTES)
    gateway.end(job_id, exit_code=0)
    out, _ = process.communicate(timeout=25)
    assert (process.returncode, out) == (0, ALL_BYTES)


@pytest.mark.parametrize("quietly", [False, True])
def test_streams_that_break_go_on_at_the_next_byte(yard: Yard, gateway: GatewayDouble, quietly: bool) -> None:
    gateway.state.quietly = quietly
    gateway.state.cuts = [10, 1500, 3]

    def on_submit(job: dict[str, Any]) -> None:
        start_job(gateway.state, job["id"])
        gateway.state.logs[job["id"], 1, 0].data = ALL_BYTES
        end_job(gateway.state, job["id"], exit_code=0)

    gateway.on_submit = on_submit
    result = yard("run", "--wait", "--", "true")
    assert (result.returncode, result.stdout) == (0, ALL_BYTES)
    assert gateway.state.cuts == []


def test_a_reader_that_goes_away_leaves_the_job(yard: Yard, gateway: GatewayDouble) -> None:
    process = yard.start("run", "--wait", "--", "true")
    gateway.until(lambda state: bool(state.jobs))
    (job_id,) = gateway.state.jobs
    gateway.running(job_id)
    assert process.stdout
    process.stdout.close()
    gateway.write(job_id, b"nobody hears this\n")
    assert process.stderr
    err = process.stderr.read().decode()
    assert process.wait(15) == 141
    assert "nobody reads the output" in err
    assert "Traceback" not in err
    assert gateway.state.jobs[job_id]["state"] == "running"


# --- submit ---


def test_a_file_travels_as_it_was_written(yard: Yard, gateway: GatewayDouble, tmp_path: Any) -> None:
    text = b"# a comment\nname: a\nrun: {command: ['true']}\n"
    (tmp_path / "a.yaml").write_bytes(text)
    (tmp_path / "b.json").write_text('{"name": "b", "run": {"command": ["true"]}}')
    result = yard("submit", str(tmp_path / "a.yaml"), str(tmp_path / "b.json"))
    assert result.stdout.decode().split() == list(gateway.state.jobs)
    first, second = gateway.state.received
    assert (first.body, first.headers["content-type"]) == (text, "application/yaml")
    assert second.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_stdin_with_changed_fields(yard: Yard, gateway: GatewayDouble) -> None:
    document = b"name: a\ntasks: {count: 2}\nrun: {command: ['true']}\n"
    result = yard("submit", "--set", "tasks.count=4", "--set", "run.env.SEED='7'", "-o", "json", "-", stdin=document)
    job = json.loads(result.stdout)
    assert (job["tasks"]["count"], job["spec"]["run"]["env"]) == (4, {"SEED": "7"})
    assert job == next(iter(gateway.state.jobs.values()))


def test_the_same_key_gives_the_same_job_and_another_document_conflicts(yard: Yard, gateway: GatewayDouble) -> None:
    document = b"name: a\nrun: {command: ['true']}\n"
    first = yard("submit", "--idempotency-key", "k1", "-", stdin=document)
    again = yard("submit", "--idempotency-key", "k1", "-", stdin=document)
    other = yard("submit", "--idempotency-key", "k1", "-", stdin=document.replace(b"a", b"b", 1))
    assert first.stdout == again.stdout
    assert (other.returncode, other.stdout) == (4, b"")
    assert "used with another document" in other.stderr.decode()
    assert len(gateway.state.jobs) == 1


def test_a_refused_document_names_its_fields(yard: Yard, gateway: GatewayDouble) -> None:
    document = b"name: a\ntasks: {gpus: 0, colour: red}\nrun: {command: ['true']}\n"
    result = yard("submit", "-", stdin=document)
    assert (result.returncode, result.stdout) == (4, b"")
    assert "tasks.gpus: Input should be greater than or equal to 1" in result.stderr.decode()
    assert "tasks.colour" in result.stderr.decode()
    assert gateway.state.jobs == {}


def test_an_oversized_document_is_the_servers_to_refuse(yard: Yard, gateway: GatewayDouble) -> None:
    result = yard("submit", "-", stdin=b"name: a # " + b"x" * 300 * 1024)
    assert result.returncode == 4
    assert "256 KiB" in result.stderr.decode()


def test_several_jobs_followed_together_are_told_apart(yard: Yard, gateway: GatewayDouble, tmp_path: Any) -> None:
    finish(gateway, "succeeded", exit_code=0)
    files = []
    for name in ("alpha", "beta"):
        files.append(str(tmp_path / f"{name}.yaml"))
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nrun: {{command: ['true']}}\n")
    result = yard("submit", "--wait", *files)
    assert (result.returncode, sorted(result.stdout.splitlines())) == (0, [b"[alpha 0] said", b"[beta 0] said"])
