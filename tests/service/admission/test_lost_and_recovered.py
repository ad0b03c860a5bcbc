"""Silent nodes: quota stands still with the work, and comes back with it."""

from datetime import timedelta

from support.admission import Desk
from yard_events.types import AttemptStarted, JobStarting


async def test_lost_gives_the_claim_back_and_recovered_takes_it_again_above_the_quota(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.submit("b", gpus=4)
    await desk.start("a")
    await desk.lose("a")
    assert await desk.states("a", "b") == ["lost", "admitted"]
    await desk.recover("a")
    assert (await desk.told("a"))[-2:] == ["lost node_lost", "running"]
    assert await desk.used() == 8
    await desk.submit("c")
    await desk.exit_after_start("b")
    assert await desk.states("c") == ["queued"]
    await desk.exit("a")
    assert await desk.states("c") == ["admitted"]


async def test_lost_for_good_is_retried(desk: Desk) -> None:
    await desk.submit("a", attempts=2)
    await desk.start("a")
    await desk.lose("a")
    await desk.exit("a", "lost", "node_rebooted", None)
    assert await desk.commands("a") == ["place a1", "place a2"]
    assert await desk.used() == 1


async def test_lost_before_its_start_comes_back_starting(desk: Desk) -> None:
    await desk.submit("a", count=2)
    await desk.grant("a")
    await desk.lose("a")
    await desk.recover("a")
    assert (await desk.told("a"))[-2:] == ["lost node_lost", "starting"]
    assert [len(fact.tasks) for fact in await desk.facts(JobStarting)] == [2, 2]
    await desk.decide(AttemptStarted, "a")
    assert (await desk.told("a"))[-1] == "running"


async def test_started_while_lost_comes_back_running(desk: Desk) -> None:
    await desk.submit("a", max_run="60s")
    await desk.grant("a")
    await desk.lose("a")
    await desk.decide(AttemptStarted, "a")
    assert await desk.states("a") == ["lost"]
    await desk.recover("a")
    assert (await desk.told("a"))[-1] == "running"
    await desk.wait(61)
    assert (await desk.commands("a"))[-1] == "stop a1 max_run_time"


async def test_a_gang_is_lost_until_the_last_of_its_nodes_is_back(desk: Desk) -> None:
    await desk.submit("a", count=2)
    await desk.start("a")
    await desk.lose("a", ranks=[0])
    await desk.lose("a", ranks=[1])
    await desk.recover("a", ranks=[1])
    assert await desk.states("a") == ["lost"]
    assert await desk.used() == 0
    await desk.recover("a", ranks=[0])
    assert await desk.told("a") == ["queued", "admitted", "starting", "running", "lost node_lost", "running"]
    assert await desk.used() == 2


async def test_the_run_time_stands_still_from_the_last_contact_to_the_return(desk: Desk) -> None:
    await desk.submit("a", max_run="60s")
    await desk.start("a")
    await desk.wait(50)
    await desk.lose("a", contact=desk.clock.now() - timedelta(seconds=20))
    await desk.wait(1000)
    assert await desk.commands("a") == ["place a1"]
    await desk.recover("a")
    await desk.wait(29)
    assert await desk.commands("a") == ["place a1"]
    await desk.wait(2)
    assert await desk.commands("a") == ["place a1", "stop a1 max_run_time"]


async def test_stopped_for_its_run_time_and_then_lost_is_not_stopped_again(desk: Desk) -> None:
    await desk.submit("a", max_run="60s")
    await desk.start("a")
    await desk.wait(61)
    await desk.lose("a")
    await desk.recover("a")
    await desk.wait(100)
    assert await desk.commands("a") == ["place a1", "stop a1 max_run_time"]
    await desk.exit("a", "stopped", "max_run_time", None)
    assert (await desk.told("a"))[-1] == "expired max_run_time"


async def test_cancelling_then_lost_comes_back_cancelling(desk: Desk) -> None:
    await desk.submit("a")
    await desk.start("a")
    await desk.cancel("a")
    await desk.lose("a")
    await desk.recover("a")
    assert (await desk.told("a"))[-3:] == ["cancelling cancelled", "lost node_lost", "cancelling cancelled"]
    assert await desk.used() == 1
    await desk.exit("a", "stopped", "cancelled", None)
    assert (await desk.told("a"))[-1] == "cancelled cancelled"


async def test_lost_then_cancelled_claims_again_when_it_comes_back(desk: Desk) -> None:
    await desk.submit("a")
    await desk.start("a")
    await desk.lose("a")
    await desk.cancel("a")
    assert (await desk.states("a"), await desk.used()) == (["cancelling"], 0)
    await desk.recover("a")
    assert (await desk.states("a"), await desk.used()) == (["cancelling"], 1)
    await desk.exit("a", "stopped", "cancelled", None)
    assert (await desk.states("a"), await desk.used()) == (["cancelled"], 0)
