"""What the README promises a newcomer, typed as a newcomer types it."""

import json
from pathlib import Path

import pytest

from support.installation import Installation, until

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_run_streams_the_output_and_shows_two_devices(yard_up: Installation) -> None:
    done = yard_up.yard(
        "run", "--gpus", "2", "--wait", "--", "python3", "-c", 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
    )
    uuids = done.stdout.strip().split(",")
    assert len(uuids) == 2
    assert all(uuid.startswith("GPU-") for uuid in uuids)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_run_exits_with_the_jobs_code(yard_up: Installation, code: int) -> None:
    assert yard_up.yard("run", "--wait", "--", "sh", "-c", f"exit {code}", check=False).returncode == code


def test_output_is_byte_exact(yard_up: Installation) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    job = yard_up.json("run", "--detach", "--", "python3", "-c", script)
    yard_up.yard("wait", job["id"])
    with yard_up.client() as client:
        answer = client.get(f"/v1/jobs/{job['id']}/logs")
    assert answer.content == bytes(range(256)) * 4096


def test_the_gang_of_the_example_really_talks(yard_up: Installation) -> None:
    done = yard_up.yard("submit", str(EXAMPLES / "train.yaml"), "--wait", check=False)
    assert done.returncode == 0, done.stdout + done.stderr + yard_up.logs()
    (job, *_) = [job for job in yard_up.json("ps", "-a")["items"] if job["tasks"]["count"] == 2]
    ends = yard_up.json("describe", job["id"])["task_ends"]
    assert [end["outcome"] for end in ends] == ["succeeded", "succeeded"]


def test_ps_describe_events_usage_nodes_audit(yard_up: Installation) -> None:
    job = yard_up.json("run", "--name", "seen", "--gpus", "1", "--detach", "--", "true")
    yard_up.yard("wait", job["id"])
    assert "seen" in yard_up.yard("ps", "-a").stdout
    assert "succeeded" in yard_up.yard("describe", job["id"]).stdout
    events = [json.loads(line) for line in yard_up.yard("events", "--job", job["id"], "-o", "json").stdout.splitlines()]
    types = [event["type"] for event in events]
    expected = [f"yard.jobs.{state}.v1" for state in ("queued", "admitted", "starting", "running", "succeeded")]
    assert [kind for kind in types if kind in expected] == expected
    nodes = yard_up.json("nodes")["items"]
    assert [len(node["devices"]) for node in nodes] == [4, 4]
    until(lambda: float(yard_up.json("usage")["total_gpu_seconds"]) > 0, 20, "usage of the job's devices")
    assert yard_up.json("audit")["findings"] == []


def test_a_spec_that_no_node_can_hold_waits_with_a_reason(yard_up: Installation) -> None:
    job = yard_up.json("run", "--gpus", "64", "--detach", "--", "true")
    found = until(lambda: (seen := yard_up.json("describe", job["id"]))["reason"] and seen, 20, "a reason for waiting")
    assert (found["state"], found["reason"]) == ("queued", "too_large")
    yard_up.yard("cancel", job["id"])
    until(lambda: yard_up.json("describe", job["id"])["state"] == "cancelled", 20, "the cancelled job's end")
