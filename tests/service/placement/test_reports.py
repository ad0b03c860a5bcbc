"""An agent's periodic report against the ledger: what got lost is sent again, what is unknown is stopped."""

import pytest

from support.placement import PoolDesk
from yard_events import types


async def test_a_command_that_the_agent_never_saw_is_sent_again_as_it_was(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.report("n1")
    assert len(await desk.sent()) == 1, "it may still be on its way"
    desk.clock.advance(11)
    await desk.report("n1")
    first, again = await desk.sent()
    assert again == first
    desk.clock.advance(5)
    await desk.report("n1")
    assert len(await desk.sent()) == 2, "not with every report"
    desk.clock.advance(6)
    await desk.report("n1")
    assert len(await desk.sent()) == 3


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (1, ["n1 start g.t0 2"]),
        (2, []),
        (3, []),
    ],
)
async def test_what_was_seen_is_not_sent_again(desk: PoolDesk, seen: int, expected: list[str]) -> None:
    await desk.node("n1")
    await desk.place("g", count=2)
    await desk.ready("g", 0, 1)
    desk.clock.advance(11)
    before = len(await desk.sent())
    await desk.report("n1", ("g.t0", seen, "prepared"), ("g.t1", 2, "starting"))
    assert (await desk.commands())[before:] == expected
    sent = await desk.sent()
    assert all(command == sent[2] for command in sent[before:])


async def test_a_stop_is_sent_again_with_its_grace(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.started("x")
    await desk.stop("x", "max_run_time", 4.0)
    desk.clock.advance(11)
    await desk.report("n1", ("x.t0", 1, "running"))
    stops = [c for c in await desk.sent() if isinstance(c, types.StopTask)]
    assert len(stops) == 2
    assert stops[0] == stops[1]
    assert (stops[1].grace_seconds, stops[1].reason) == (4.0, "max_run_time")


async def test_an_unknown_task_is_stopped(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.report("n1", ("ghost.t0", 7, "running"))
    [stop] = await desk.sent()
    assert isinstance(stop, types.StopTask)
    assert (stop.allocation_id, stop.epoch) == ("job-ghost-a1.t0", "boot/journal")
    assert stop.command_seq > 7
    # Its agent is at it: nothing more to say until it has ended.
    await desk.report("n1", ("ghost.t0", stop.command_seq, "stopping"))
    await desk.report("n1", ("ghost.t0", stop.command_seq, "exited"))
    assert len(await desk.sent()) == 1


async def test_a_task_that_the_ledger_has_closed_is_stopped(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.over("x")
    await desk.report("n1", ("x.t0", 1, "running"))
    assert (await desk.commands())[1:] == ["n1 stop x.t0 1001"]


async def test_a_report_of_another_epoch_is_no_reason_to_send_anything(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    desk.clock.advance(11)
    await desk.report("n1", epoch="boot2/journal")
    assert len(await desk.sent()) == 1


async def test_the_report_that_comes_with_the_facts_is_read_after_them(desk: PoolDesk) -> None:
    """One batch: the task ended and emptied, so the report does not list it; nothing is sent again."""
    await desk.node("n1")
    await desk.place("x")
    desk.clock.advance(11)
    await desk.started("x", settle=False)
    await desk.exited("x", settle=False)
    await desk.emptied("x", settle=False)
    await desk.report("n1")
    assert len(await desk.sent()) == 1
    assert await desk.holders() == {}


async def test_a_report_of_a_node_that_never_registered(desk: PoolDesk) -> None:
    await desk.report("n9", epoch="e/j")
    assert await desk.sent() == []
    await desk.node("n9", gpus=1)
    await desk.place("x")
    assert await desk.decided("x") == ["granted n9"]
