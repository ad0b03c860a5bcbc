"""Cancel, in every state."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.admission import Desk
from yard_events.types import AttemptGranted, AttemptStarted, JobCancelled, StopAttempt

Prepare = Callable[[Desk], Awaitable[None]]


async def behind(desk: Desk) -> None:
    await desk.submit("first", gpus=4)
    await desk.submit("a", gpus=4)


async def too_large(desk: Desk) -> None:
    await desk.submit("a", gpus=5)


async def withdrawn(desk: Desk) -> None:
    await desk.submit("a")
    await desk.block("a", "too_large", hopeless=True)
    await desk.exit("a", "stopped", "too_large", None)


@pytest.mark.parametrize("prepare", [behind, too_large, withdrawn])
async def test_waiting_ends_at_once(desk: Desk, prepare: Prepare) -> None:
    await prepare(desk)
    before = await desk.asked()
    await desk.cancel("a")
    assert (await desk.told("a"))[-1] == "cancelled cancelled"
    assert await desk.asked() == before
    await desk.node()
    assert await desk.states("a") == ["cancelled"]


async def admitted(desk: Desk) -> None:
    await desk.submit("a", gpus=4, attempts=3)


async def blocked(desk: Desk) -> None:
    await admitted(desk)
    await desk.block("a")


async def hopeless(desk: Desk) -> None:
    await admitted(desk)
    await desk.block("a", "too_large", hopeless=True)


async def starting(desk: Desk) -> None:
    await admitted(desk)
    await desk.grant("a")


async def running(desk: Desk) -> None:
    await admitted(desk)
    await desk.start("a")


async def lost(desk: Desk) -> None:
    await running(desk)
    await desk.lose("a")


OUT: list[Any] = [admitted, blocked, hopeless, starting, running, lost]


@pytest.mark.parametrize("prepare", OUT)
@pytest.mark.parametrize("outcome", ["stopped", "failed", "succeeded"])
async def test_out_at_placement_is_stopped_first(desk: Desk, prepare: Prepare, outcome: str) -> None:
    await prepare(desk)
    await desk.cancel("a")
    assert (await desk.told("a"))[-1] == "cancelling cancelled"
    stop = (await desk.asked(StopAttempt))[0]
    assert (stop.attempt_id, stop.reason, stop.grace_seconds) == ("job-a-a1", "cancelled", 10)
    await desk.exit("a", outcome, "cancelled", None)
    assert (await desk.told("a"))[-1] == "cancelled cancelled"
    assert await desk.used() == 0
    assert len(await desk.facts(JobCancelled)) == 1


@pytest.mark.parametrize("prepare", OUT)
async def test_a_second_cancel_changes_nothing(desk: Desk, prepare: Prepare) -> None:
    await prepare(desk)
    await desk.cancel("a")
    before = await desk.everything()
    await desk.cancel("a")
    assert await desk.everything() == before


@pytest.mark.parametrize(("outcome", "state"), [("succeeded", "succeeded"), ("failed", "failed")])
async def test_after_the_end_it_means_nothing(desk: Desk, outcome: str, state: str) -> None:
    await desk.submit("a")
    await desk.start("a")
    await desk.exit("a", outcome)
    before = await desk.everything()
    await desk.cancel("a")
    assert await desk.everything() == before
    assert await desk.states("a") == [state]


async def test_an_unknown_job_is_tolerated(desk: Desk) -> None:
    before = await desk.everything()
    await desk.cancel("nobody")
    assert await desk.everything() == before


async def test_in_the_same_batch_as_the_submission(desk: Desk) -> None:
    await desk.submit("a", settle=False)
    await desk.cancel("a")
    assert await desk.told("a") == ["queued", "cancelled cancelled"]
    assert await desk.asked() == []


async def test_a_grant_on_its_way_does_not_undo_it(desk: Desk) -> None:
    await desk.submit("a")
    await desk.cancel("a")
    await desk.decide(AttemptGranted, "a")
    await desk.decide(AttemptStarted, "a")
    assert await desk.told("a") == ["queued", "admitted", "cancelling cancelled"]
    await desk.exit("a", "stopped", "cancelled", None)
    assert (await desk.told("a"))[-1] == "cancelled cancelled"


async def test_it_counts_more_than_the_end_of_the_run_time(desk: Desk) -> None:
    await desk.submit("a", max_run="60s")
    await desk.start("a")
    await desk.wait(61)
    await desk.cancel("a")
    await desk.exit("a", "stopped", "max_run_time", None)
    assert (await desk.told("a"))[-1] == "cancelled cancelled"


async def test_the_run_time_does_not_count_while_it_is_being_cancelled(desk: Desk) -> None:
    await desk.submit("a", max_run="60s")
    await desk.start("a")
    await desk.cancel("a")
    await desk.wait(100)
    assert await desk.commands("a") == ["place a1", "stop a1 cancelled"]
