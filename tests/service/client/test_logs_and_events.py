"""`yard logs` and `yard events`."""

import json
import signal

from support.gateway_double import GatewayDouble
from support.yard_command import Yard

BINARY = bytes(range(256)) * 10


def test_logs_are_the_bytes_so_far(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add()
    gateway.running(job)
    gateway.write(job, BINARY)
    result = yard("logs", job)
    assert (result.returncode, result.stdout, result.stderr) == (0, BINARY, b"")


def test_logs_before_the_start_are_refused(yard: Yard, gateway: GatewayDouble) -> None:
    result = yard("logs", gateway.add())
    assert (result.returncode, result.stdout) == (4, b"")
    assert "No output yet" in result.stderr.decode()


def test_logs_of_a_gang_have_ranks_and_one_task_has_its_bytes(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add(tasks={"count": 2, "gpus": 1, "gpu_models": [], "cpus": None, "memory": None})
    gateway.running(job)
    gateway.write(job, b"zero\nend")
    gateway.write(job, BINARY, rank=1)
    assert yard("logs", job).stdout.splitlines()[:2] == [b"[0] zero", b"[0] end"]
    assert yard("logs", "--task", "1", job).stdout == BINARY
    gateway.end(job)
    assert yard("logs", "-f", "--task", "1", job).stdout == BINARY


def test_logs_of_an_earlier_attempt(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add()
    for attempt, data in ((1, b"one\n"), (2, b"two\n")):
        gateway.running(job, attempt)
        gateway.write(job, data, attempt=attempt)
    gateway.end(job)
    assert yard("logs", job).stdout == b"two\n"
    assert yard("logs", "--attempt", "1", job).stdout == b"one\n"
    assert yard("logs", "-f", "--attempt", "1", job).stdout == b"one\n"
    assert yard("logs", "-f", job).stdout == b"two\n"


def test_following_waits_for_the_start_and_ends_with_the_job(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add("train")
    process = yard.start("logs", "-f", "train")
    gateway.until(lambda state: any(request.path.endswith("/logs") for request in state.received))
    gateway.running(job)
    gateway.write(job, BINARY)
    gateway.end(job, "failed", reason="exit_code", exit_code=3)
    out, err = process.communicate(timeout=15)
    assert (process.returncode, out, err) == (0, BINARY, b"")


def test_an_interrupted_follower_leaves_the_job(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add()
    gateway.running(job)
    gateway.write(job, b"x\n")
    process = yard.start("logs", "-f", job)
    assert process.stdout
    assert process.stdout.readline() == b"x\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (130, b"")
    assert gateway.state.jobs[job]["state"] == "running"


def test_the_history_of_a_job(yard: Yard, gateway: GatewayDouble) -> None:
    job, other = gateway.add("a"), gateway.add("b")
    gateway.running(job)
    gateway.end(job, "failed", reason="exit_code", exit_code=3)
    result = yard("events", "--job", "a", "-o", "json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert events == [event for event in gateway.state.events if event["job_id"] == job]
    table = yard("events", "--job", "a").stdout.decode()
    assert "jobs.failed" in table
    assert "The command exited. exit code 3" in table
    assert other not in table
    since = yard("events", "--job", "a", "--since-id", str(events[1]["seq"]), "-o", "json").stdout
    assert [json.loads(line) for line in since.splitlines()] == events[2:]
    only = yard("events", "--job", "a", "--type", "yard.jobs.running.v1", "-o", "json").stdout
    assert [json.loads(line)["type"] for line in only.splitlines()] == ["yard.jobs.running.v1"]


def test_followed_events_survive_broken_streams_and_a_restart(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.state.cuts = [100]
    gateway.add("before")
    process = yard.start("events", "-f", "--since-id", "0", "-o", "json")
    assert process.stdout
    seen = [json.loads(process.stdout.readline())]
    gateway.add("second")
    seen.append(json.loads(process.stdout.readline()))
    gateway.stop()
    gateway.start()
    gateway.add("third")
    seen.append(json.loads(process.stdout.readline()))
    assert seen == gateway.state.events
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=15)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_followed_job_begins_with_its_history(yard: Yard, gateway: GatewayDouble) -> None:
    job = gateway.add()
    gateway.add("other")
    process = yard.start("events", "-f", "--job", job, "-o", "json")
    assert process.stdout
    assert json.loads(process.stdout.readline())["type"] == "yard.jobs.queued.v1"
    gateway.running(job)
    assert json.loads(process.stdout.readline())["type"] == "yard.jobs.running.v1"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)


def test_events_of_nothing_is_a_usage_error(yard: Yard) -> None:
    result = yard("events")
    assert result.returncode == 2
    assert "--job" in result.stderr.decode()
