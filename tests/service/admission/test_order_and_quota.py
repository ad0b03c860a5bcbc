"""Who is admitted, in which order, and what those who wait are told."""

from typing import Any

import pytest

from support.admission import Desk
from support.log import events_of
from yard_admission.api import define_queue
from yard_admission.settings import AdmissionSettings
from yard_events import registry
from yard_events.types import JobFact, JobQueued, PlaceAttempt, QueueState
from yard_runtime.service import Runtime


async def resize(desk: Desk, name: str, quota: int) -> None:
    async with desk.store.unit_of_work() as uow:
        await define_queue(uow, name, quota, AdmissionSettings(notice_seconds=0))
    await desk.settle()


async def placed(desk: Desk) -> list[str]:
    return [place.job_id.removeprefix("job-") for place in await desk.asked(PlaceAttempt)]


async def test_a_submission_is_queued_admitted_and_sent_to_placement(desk: Desk) -> None:
    await desk.submit("a", gpus=2, priority=7, max_run="90s")
    assert await desk.told("a") == ["queued", "admitted"]
    assert await desk.used() == 2
    queued = (await desk.facts(JobQueued))[0]
    assert (queued.submitted_by, queued.attempt, queued.queue, queued.name) == ("ann", 1, "default", "a")
    place = (await desk.asked(PlaceAttempt))[0]
    assert (place.attempt_id, place.attempt, place.priority, place.max_run_seconds) == ("job-a-a1", 1, 7, 90)
    assert (place.cluster, place.pool, place.tasks.gpus, place.run.command) == ("local", "default", 2, ["true"])
    assert place.submitted_at == queued.submitted_at


ORDERS: list[Any] = [
    pytest.param([("a", 0, 1), ("b", 0, 2), ("c", 0, 3)], ["a", "b", "c"], id="age"),
    pytest.param([("a", 0, 1), ("b", 5, 2), ("c", -1, 0)], ["b", "a", "c"], id="priority before age"),
    pytest.param([("c", 0, 1), ("a", 0, 1), ("b", 0, 1)], ["a", "b", "c"], id="same age: job id"),
    pytest.param([("a", 1000, 9), ("b", -1000, 1), ("c", 1000, 8)], ["c", "a", "b"], id="edges of priority"),
]


@pytest.mark.parametrize(("jobs", "order"), ORDERS)
async def test_order(desk: Desk, jobs: list[tuple[str, int, int]], order: list[str]) -> None:
    await desk.submit("first", gpus=4)
    for name, priority, age in jobs:
        await desk.submit(name, gpus=4, priority=priority, age=100 + age)
    await desk.exit_after_start("first")
    for name in order:
        assert (await placed(desk))[-1] == name
        await desk.exit_after_start(name)
    assert await placed(desk) == ["first", *order]


QUOTAS: list[Any] = [
    pytest.param([4], [4], 4, id="exactly the quota"),
    pytest.param([3, 1], [3, 1], 4, id="filled to the last"),
    pytest.param([3, 2, 1], [3], 3, id="strict: a smaller one behind the head waits"),
    pytest.param([5, 4], [4], 4, id="too large for the quota blocks nobody"),
    pytest.param([1, 5, 5, 1, 1, 1], [1, 1, 1, 1], 4, id="several too large in between"),
]


@pytest.mark.parametrize(("gpus", "admitted", "used"), QUOTAS)
async def test_quota(desk: Desk, gpus: list[int], admitted: list[int], used: int) -> None:
    for index, size in enumerate(gpus):
        await desk.submit(f"j{index}", gpus=size, settle=False)
    await desk.settle()
    assert [place.tasks.gpus for place in await desk.asked(PlaceAttempt)] == admitted
    assert await desk.used() == used


async def test_a_gang_claims_for_all_its_tasks(desk: Desk) -> None:
    await desk.submit("gang", count=2, gpus=2)
    await desk.submit("more", gpus=1)
    assert await desk.used() == 4
    assert await desk.states("gang", "more") == ["admitted", "queued"]


async def test_those_who_wait_are_told_quota_once(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    for name in ("b", "c", "d"):
        await desk.submit(name, gpus=2)
    assert await desk.told("b") == await desk.told("c") == ["queued", "queued quota"]
    await desk.exit_after_start("a")
    # b and c go, d is the head now and knows already
    assert await desk.told("b") == ["queued", "queued quota", "admitted"]
    assert await desk.told("d") == ["queued", "queued quota"]


async def test_a_short_wait_is_not_worth_an_event(runtime: Runtime) -> None:
    desk = await Desk.open(runtime, notice_seconds=1.0)
    await desk.submit("a", gpus=4)
    await desk.submit("b", gpus=4)
    await desk.submit("c", gpus=4)
    await desk.wait(0.5)
    await desk.exit_after_start("a")
    assert await desk.told("b") == ["queued", "admitted"]
    assert await desk.told("c") == ["queued"]
    await desk.wait(2)
    assert await desk.told("c") == ["queued", "queued quota"]


async def test_many_waiting_are_told_in_bounded_steps(runtime: Runtime) -> None:
    desk = await Desk.open(runtime, notices_per_cycle=3, admissions_per_cycle=2, default_gpu_quota=5)
    for index in range(15):
        await desk.submit(f"j{index:02}", settle=False)
    await desk.settle()
    assert [place.job_id for place in await desk.asked(PlaceAttempt)] == [f"job-j{index:02}" for index in range(5)]
    for index in range(5, 15):
        assert await desk.told(f"j{index:02}") == ["queued", "queued quota"]


async def test_too_small_a_quota_is_said_once_and_a_higher_one_admits(desk: Desk) -> None:
    await desk.submit("big", gpus=6)
    await desk.submit("a", gpus=4)
    await desk.exit_after_start("a")
    assert await desk.told("big") == ["queued quota_too_small"]
    await resize(desk, "default", 6)
    assert await desk.told("big") == ["queued quota_too_small", "admitted"]
    assert await desk.used() == 6


async def test_a_raised_quota_in_use_states_the_new_reason(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.submit("big", gpus=6)
    await resize(desk, "default", 7)
    assert await desk.told("big") == ["queued quota_too_small", "queued quota"]
    await desk.exit_after_start("a")
    assert (await desk.told("big"))[-1] == "admitted"


async def test_a_lowered_quota_keeps_claims_and_tells_those_it_is_too_small_for(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.submit("b", gpus=3)
    await desk.submit("c", gpus=1)
    await resize(desk, "default", 2)
    assert await desk.used() == 4
    assert await desk.told("b") == ["queued", "queued quota", "queued quota_too_small"]
    await desk.exit_after_start("a")
    assert await desk.states("b", "c") == ["queued", "admitted"]
    await resize(desk, "default", 0)
    await resize(desk, "default", 4)
    assert await desk.states("b", "c") == ["admitted", "admitted"]


async def test_a_quota_of_nothing_admits_nothing(desk: Desk) -> None:
    await resize(desk, "default", 0)
    await desk.submit("a")
    assert await desk.told("a") == ["queued quota_too_small"]
    assert await desk.asked() == []


async def test_queues_do_not_wait_for_each_other(runtime: Runtime) -> None:
    desk = await Desk.open(runtime, queues_per_cycle=2, admissions_per_cycle=4)
    for index in range(5):
        await resize(desk, f"q{index}", 1)
    for index in range(5):
        for number in range(3):
            await desk.submit(f"q{index}-{number}", queue=f"q{index}", settle=False)
    await desk.settle()
    assert sorted(await placed(desk)) == [f"q{index}-0" for index in range(5)]
    states = [e for e in await events_of(desk.runtime, registry.QUEUES_STATE) if isinstance(e, QueueState)]
    assert [(state.queue, state.gpu_quota) for state in states] == [("default", 4), *((f"q{i}", 1) for i in range(5))]


@pytest.mark.parametrize(
    ("spec", "detail"),
    [
        ({"queue": "nosuch"}, "there is no queue nosuch"),
        ({"project": "nosuch"}, "there is no project nosuch"),
        ({"queue": "no", "project": "none"}, "there is no queue no and no project none"),
    ],
)
async def test_a_submission_into_nothing_fails(desk: Desk, spec: dict[str, str], detail: str) -> None:
    await desk.submit("a", **spec)
    failed = (await desk.facts(JobFact))[0]
    assert (failed.state, failed.reason, failed.detail) == ("failed", "invalid_request", detail)
    assert await desk.asked() == []
