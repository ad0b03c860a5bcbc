"""Jobs that no node could hold: they claim nothing, and are tried again when the fleet has changed."""

from typing import Any

import pytest

from support.admission import Desk, node_state
from yard_events.types import AttemptBlocked, AttemptGranted, AttemptStarted


async def hopeless(desk: Desk, *, acknowledged: bool = True) -> None:
    await desk.node()
    await desk.submit("a", gpus=4)
    await desk.block("a", "too_large", hopeless=True)
    if acknowledged:
        await desk.exit("a", "stopped", "too_large", None)


async def test_it_gives_its_claim_back_and_is_withdrawn(desk: Desk) -> None:
    await hopeless(desk)
    await desk.submit("b", gpus=4)
    assert await desk.told("a") == ["queued", "admitted", "queued too_large"]
    assert await desk.commands("a") == ["place a1", "withdraw a1"]
    assert await desk.states("a", "b") == ["queued", "admitted"]
    assert await desk.used() == 4


RELEVANT: list[Any] = [
    pytest.param([node_state("n2")], id="a new node"),
    pytest.param([node_state(generation=2)], id="another generation"),
    pytest.param([node_state(boot_id="b2")], id="a reboot"),
    pytest.param([node_state(cpus=64.0)], id="more CPU"),
    pytest.param([node_state(memory_bytes=2**40)], id="more memory"),
    pytest.param([node_state(devices=[])], id="other devices"),
    pytest.param([node_state(cordoned=True), node_state()], id="uncordoned"),
    pytest.param([node_state(state="lost"), node_state()], id="ready again"),
]
IRRELEVANT: list[Any] = [
    pytest.param([node_state()], id="a heartbeat"),
    pytest.param([node_state(labels={"rack": "r2"}, agent_url="http://else")], id="labels"),
    pytest.param([node_state(state="suspect")], id="silence"),
    pytest.param([node_state(cordoned=True)], id="cordoned"),
]


@pytest.mark.parametrize("states", RELEVANT)
async def test_a_fleet_that_may_hold_it_makes_it_a_candidate_again(desk: Desk, states: list[Any]) -> None:
    await hopeless(desk)
    await desk.send(*states)
    assert await desk.commands("a") == ["place a1", "withdraw a1", "place a1.2"]
    await desk.start("a")
    await desk.exit("a")
    assert (await desk.told("a"))[-4:] == ["admitted", "starting", "running", "succeeded exit_code"]


@pytest.mark.parametrize("states", IRRELEVANT)
async def test_anything_else_does_not(desk: Desk, states: list[Any]) -> None:
    await hopeless(desk)
    await desk.send(*states)
    assert await desk.commands("a") == ["place a1", "withdraw a1"]


async def test_it_waits_for_its_turn_like_any_other(desk: Desk) -> None:
    await hopeless(desk)
    await desk.submit("b", gpus=4)
    await desk.node("n2")
    assert (await desk.told("a"))[-1] == "queued quota"
    await desk.exit_after_start("b")
    assert (await desk.commands("a"))[-1] == "place a1.2"


async def test_it_is_not_placed_again_before_placement_confirmed_the_withdrawal(desk: Desk) -> None:
    await hopeless(desk, acknowledged=False)
    await desk.node("n2")
    assert await desk.commands("a") == ["place a1", "withdraw a1"]
    await desk.exit("a", "stopped", "too_large", None)
    assert await desk.commands("a") == ["place a1", "withdraw a1", "place a1.2"]


async def test_granted_before_the_withdrawal_arrived_it_simply_runs(desk: Desk) -> None:
    await hopeless(desk, acknowledged=False)
    await desk.node("n2")
    await desk.start("a")
    assert await desk.used() == 4
    await desk.wait(10_000)
    await desk.exit("a")
    assert await desk.commands("a") == ["place a1", "withdraw a1"]
    assert await desk.told("a") == [
        "queued",
        "admitted",
        "queued too_large",
        "starting",
        "running",
        "succeeded exit_code",
    ]


async def test_hopeless_and_granted_in_one_batch_is_not_withdrawn(desk: Desk) -> None:
    await desk.submit("a", gpus=4)
    await desk.decide(AttemptBlocked, "a", reason="no_nodes", hopeless=True, settle=False)
    await desk.decide(AttemptGranted, "a", settle=False)
    await desk.decide(AttemptStarted, "a")
    assert await desk.commands("a") == ["place a1"]
    assert await desk.used() == 4


async def test_a_verdict_that_was_old_when_it_came_is_checked_again(desk: Desk) -> None:
    """The node may have been announced before the verdict, which was reached without it: no event will follow."""
    await hopeless(desk)
    await desk.wait(59)
    assert (await desk.commands("a"))[-1] == "withdraw a1"
    await desk.wait(2)
    assert (await desk.commands("a"))[-1] == "place a1.2"
    await desk.block("a", "too_large", hopeless=True)
    await desk.exit("a", "stopped", "too_large", None)
    await desk.wait(61)
    assert (await desk.commands("a"))[-1] == "withdraw a1.2"
    await desk.wait(240)
    assert (await desk.commands("a"))[-1] == "place a1.3"


async def test_it_fails_and_is_retried_with_fresh_names(desk: Desk) -> None:
    await desk.submit("a", attempts=2)
    await desk.block("a", "no_nodes", hopeless=True)
    await desk.exit("a", "stopped", "no_nodes", None)
    await desk.node()
    await desk.start("a")
    await desk.exit("a", "failed", code=1)
    assert await desk.commands("a") == ["place a1", "withdraw a1", "place a1.2", "place a2"]
