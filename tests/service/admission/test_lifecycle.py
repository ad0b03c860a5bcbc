"""From admission to the end, with retries, as placement tells it."""

from typing import Any

import pytest

from support.admission import Desk
from yard_events.types import (
    AttemptExited,
    AttemptGranted,
    AttemptStarted,
    JobExpired,
    JobFailed,
    JobQueued,
    JobStarting,
    JobSucceeded,
)


async def test_a_run_to_success(desk: Desk) -> None:
    await desk.submit("a", count=2)
    await desk.start("a")
    assert await desk.used() == 2
    await desk.exit("a")
    assert await desk.told("a") == ["queued", "admitted", "starting", "running", "succeeded exit_code"]
    starting = (await desk.facts(JobStarting))[0]
    assert [(t.task_rank, t.allocation_id, t.node, t.agent_url, t.device_uuids) for t in starting.tasks] == [
        (0, "job-a-a1.t0", "n1", "http://n1", ["GPU-0"]),
        (1, "job-a-a1.t1", "n1", "http://n1", ["GPU-1"]),
    ]
    end = (await desk.facts(JobSucceeded))[0]
    assert (end.exit_code, end.attempt, [task.exit_code for task in end.tasks]) == (0, 1, [0])
    assert await desk.used() == 0


async def test_start_and_end_in_one_batch(desk: Desk) -> None:
    await desk.submit("a")
    await desk.decide(AttemptGranted, "a", settle=False)
    await desk.decide(AttemptStarted, "a", settle=False)
    await desk.decide(AttemptExited, "a", outcome="succeeded", reason="exit_code", exit_code=0, settle=False)
    await desk.settle()
    assert await desk.told("a") == ["queued", "admitted", "starting", "running", "succeeded exit_code"]


async def test_the_claim_given_back_admits_the_next(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.submit("b", gpus=4)
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    assert await desk.states("a", "b") == ["failed", "admitted"]
    assert await desk.used() == 4


ENDS: list[Any] = [
    pytest.param("failed", "exit_code", 3, "failed exit_code", id="exit code"),
    pytest.param("failed", "signal", None, "failed signal", id="signal"),
    pytest.param("lost", "node_rebooted", None, "failed node_rebooted", id="node rebooted"),
    pytest.param("stopped", "start_deadline", None, "failed start_deadline", id="start deadline"),
    pytest.param("stopped", "gang_member_failed", None, "failed gang_member_failed", id="gang"),
]


@pytest.mark.parametrize(("outcome", "reason", "code", "told"), ENDS)
async def test_ends(desk: Desk, outcome: str, reason: str, code: int | None, told: str) -> None:
    await desk.submit("a")
    await desk.start("a")
    await desk.exit("a", outcome, reason, code, detail="why")
    assert (await desk.told("a"))[-1] == told
    failed = (await desk.facts(JobFailed))[0]
    assert (failed.exit_code, failed.detail, failed.tasks[0].reason) == (code, "why", reason)
    assert await desk.used() == 0


@pytest.mark.parametrize(("outcome", "reason", "code", "told"), ENDS)
async def test_retries(desk: Desk, outcome: str, reason: str, code: int | None, told: str) -> None:
    await desk.submit("a", attempts=2)
    await desk.start("a")
    await desk.exit("a", outcome, reason, code)
    assert await desk.commands("a") == ["place a1", "place a2"]
    assert (await desk.told("a"))[-2:] == ["queued retry", "admitted"]
    retry = (await desk.facts(JobQueued))[-1]
    assert (retry.attempt, (retry.detail or "").startswith(f"attempt 1 of 2 ended: {reason}")) == (2, True)
    await desk.start("a")
    await desk.exit("a", outcome, reason, code)
    assert (await desk.told("a"))[-1] == told
    assert (await desk.facts(JobFailed))[0].attempt == 2


async def test_a_retry_keeps_the_place_of_its_submission(desk: Desk) -> None:
    await desk.submit("old", gpus=4, attempts=2, age=1)
    await desk.submit("young", gpus=4, age=2)
    await desk.start("old")
    await desk.exit("old", "failed", code=1)
    assert await desk.states("old", "young") == ["admitted", "queued"]


async def test_a_retry_behind_more_important_work_says_why_it_waits(desk: Desk) -> None:
    await desk.submit("a", gpus=4, attempts=2)
    await desk.submit("urgent", gpus=4, priority=9)
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    assert await desk.states("a", "urgent") == ["queued", "admitted"]
    assert (await desk.told("a"))[-2:] == ["queued retry", "queued quota"]


async def test_blocked_in_placement_keeps_the_claim_and_starts_later(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.block("a", "insufficient_gpu", detail="0 free")
    await desk.block("a", "behind_earlier")
    await desk.submit("b", gpus=4)
    assert await desk.states("a", "b") == ["queued", "queued"]
    assert await desk.used() == 4
    await desk.start("a")
    assert await desk.told("a") == [
        "queued",
        "admitted",
        "queued insufficient_gpu",
        "queued behind_earlier",
        "starting",
        "running",
    ]
    assert await desk.commands("a") == ["place a1"]


async def test_decisions_about_an_earlier_attempt_change_nothing(desk: Desk) -> None:
    await desk.submit("a", attempts=3)
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    await desk.decide(AttemptStarted, "a", attempt_id="job-a-a1")
    await desk.decide(AttemptExited, "a", attempt_id="job-a-a1", outcome="failed", reason="exit_code", exit_code=1)
    assert (await desk.told("a"))[-1] == "admitted"
    assert await desk.commands("a") == ["place a1", "place a2"]


async def test_expiry_stops_and_ends_expired_without_a_retry(desk: Desk) -> None:
    await desk.submit("a", max_run="60s", attempts=3)
    await desk.wait(100)
    await desk.start("a")
    await desk.wait(59)
    assert await desk.commands("a") == ["place a1"]
    await desk.wait(2)
    assert await desk.commands("a") == ["place a1", "stop a1 max_run_time"]
    assert await desk.states("a") == ["running"]
    await desk.exit("a", "stopped", "max_run_time", None)
    assert (await desk.told("a"))[-1] == "expired max_run_time"
    assert len(await desk.facts(JobExpired)) == 1
    assert await desk.used() == 0


@pytest.mark.parametrize(
    ("outcome", "told"), [("succeeded", "succeeded exit_code"), ("failed", "expired max_run_time")]
)
async def test_an_end_of_its_own_while_it_is_being_stopped(desk: Desk, outcome: str, told: str) -> None:
    await desk.submit("a", max_run="60s", attempts=2)
    await desk.start("a")
    await desk.wait(61)
    await desk.exit("a", outcome)
    assert (await desk.told("a"))[-1] == told


async def test_an_end_in_time_leaves_no_timer(desk: Desk) -> None:
    await desk.submit("a", max_run="60s", attempts=2)
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    await desk.start("a")
    await desk.wait(59)
    await desk.exit("a")
    await desk.wait(100)
    assert await desk.commands("a") == ["place a1", "place a2"]
    assert await desk.rows("SELECT * FROM admission.timers WHERE kind = 'max_run_time'") == []


async def test_each_attempt_has_its_own_run_time(desk: Desk) -> None:
    await desk.submit("a", max_run="60s", attempts=2)
    await desk.start("a")
    await desk.wait(50)
    await desk.exit("a", "failed", code=1)
    await desk.start("a")
    await desk.wait(50)
    assert await desk.commands("a") == ["place a1", "place a2"]
    await desk.wait(11)
    assert (await desk.commands("a"))[-1] == "stop a2 max_run_time"
