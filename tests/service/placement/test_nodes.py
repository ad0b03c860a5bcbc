"""Nodes that fall silent, come back, reboot, lose devices; what inventory says and what agents say may cross."""

from datetime import timedelta

from support.placement import PoolDesk, device
from yard_events import types


async def running(desk: PoolDesk, name: str = "x", **spec: int) -> None:
    await desk.place(name, **spec)
    await desk.started(name)


async def test_lost_and_back(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    desk.clock.advance(60)
    await desk.inventory("n1", state="lost", last_contact=desk.clock.now() - timedelta(seconds=40))
    assert await desk.state("x") == "lost"
    assert await desk.holders() == {"n1/0": "x.t0"}, "the devices stay out until the agent reports"
    desk.clock.advance(100)
    await desk.inventory("n1", state="ready", last_contact=desk.clock.now())
    assert await desk.state("x") == "running"
    desk.clock.advance(5)
    await desk.over("x")
    assert await desk.decided("x") == [
        "granted n1",
        "started",
        "lost t0",
        "recovered t0",
        "exited succeeded exit_code",
        "released t0",
    ]
    await desk.check_bills()
    [row] = await desk.rows("SELECT lost_micros, lost_since FROM placement.allocations")
    assert 140 * 10**6 <= row["lost_micros"] < 141 * 10**6
    assert row["lost_since"] is None


async def test_lost_and_rebooted(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    desk.clock.advance(60)
    await desk.inventory("n1", state="lost")
    desk.clock.advance(60)
    await desk.registers("n1", "boot2/journal")
    assert (await desk.decided("x"))[2:] == ["lost t0", "exited lost node_rebooted", "released t0"]
    assert await desk.holders() == {}
    await desk.check_bills()


async def test_inventory_knows_of_the_reboot_first(desk: PoolDesk) -> None:
    """Its news come on another topic: neither is the old task taken for recovered, nor does new work go out to an epoch
    that is gone."""
    await desk.node("n1")
    await running(desk)
    await desk.inventory("n1", state="lost")
    await desk.inventory("n1", state="ready", boot_id="boot2")
    assert await desk.state("x") == "lost"
    await desk.place("y")
    assert await desk.decided("y") == ["blocked unhealthy"]
    await desk.registers("n1", "boot2/journal")
    assert (await desk.decided("x"))[2:] == ["lost t0", "exited lost node_rebooted", "released t0"]
    assert (await desk.decided("y"))[1:] == ["granted n1"]
    assert (await desk.sent())[-1].epoch == "boot2/journal"


async def test_the_agent_lost_its_journal(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    await desk.registers("n1", "boot/journal2")
    assert (await desk.decided("x"))[2:] == ["exited lost agent_state_lost", "released t0"]
    await desk.check_bills()


async def test_an_agent_that_only_restarts_changes_nothing(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    before = await desk.decided("x")
    await desk.registers("n1", "boot/journal")
    assert await desk.decided("x") == before
    assert await desk.state("x") == "running"


async def test_a_reboot_frees_devices_that_were_emptying(desk: PoolDesk) -> None:
    """The attempt has ended; the agent of the new epoch will never say `emptied` for what it never had."""
    await desk.node("n1")
    await running(desk)
    await desk.exited("x")
    assert await desk.holders() == {"n1/0": "x.t0"}
    await desk.registers("n1", "boot2/journal")
    assert await desk.holders() == {}


async def test_facts_of_the_old_epoch_after_the_new_one_are_of_nothing(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.registers("n1", "boot2/journal")
    before = await desk.everything()
    await desk.started("x")
    await desk.exited("x")
    await desk.emptied("x")
    assert await desk.everything() == before


async def test_one_node_of_a_gang_is_lost_and_the_other_goes_on(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.node("n2")
    await desk.place("g", count=2, gpus=2)
    await desk.ready("g", 0, 1)
    await desk.started("g", 0, 1)
    await desk.inventory("n2", state="lost")
    assert await desk.state("g") == "lost"
    await desk.inventory("n2", state="ready")
    assert (await desk.decided("g"))[2:] == ["lost t1", "recovered t1"]
    assert await desk.state("g") == "running"


async def test_a_lost_gang_member_ends_meanwhile(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.node("n2")
    await desk.place("g", count=2, gpus=2)
    await desk.ready("g", 0, 1)
    await desk.started("g", 0, 1)
    desk.clock.advance(10)
    await desk.inventory("n2", state="lost")
    desk.clock.advance(10)
    await desk.exited("g", 1, settle=False)
    await desk.emptied("g", 1)
    assert (await desk.decided("g"))[2:] == ["lost t1", "released t1", "recovered t1"]
    assert await desk.state("g") == "running"
    desk.clock.advance(10)
    await desk.over("g", 0)
    assert (await desk.decided("g"))[5:] == ["exited succeeded exit_code", "released t0"]
    await desk.check_bills()


async def test_a_stop_while_lost_is_sent_and_reaches_the_node_when_it_is_back(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    await desk.inventory("n1", state="lost")
    await desk.stop("x")
    assert (await desk.commands())[1:] == ["n1 stop x.t0 2"]
    await desk.inventory("n1", state="ready")
    assert await desk.state("x") == "stopping"
    desk.clock.advance(11)
    await desk.report("n1", ("x.t0", 1, "running"))
    assert (await desk.commands())[2:] == ["n1 stop x.t0 2"]


async def test_nothing_goes_to_a_node_that_is_silent_or_has_not_said_its_epoch(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.inventory("n1", state="suspect")
    await desk.place("x")
    assert await desk.decided("x") == ["blocked unhealthy"]
    desk.hardware["n2"] = desk.hardware["n1"].model_copy(update={"node": "n2", "devices": [device("n2/0", 0)]})
    await desk.inventory("n2", state="ready")
    assert await desk.decided("x") == ["blocked unhealthy"]
    await desk.registers("n2", "boot/journal")
    assert (await desk.decided("x"))[1:] == ["granted n2"]


async def test_a_device_that_vanishes_while_it_is_held(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=2)
    await running(desk)
    await desk.inventory("n1", devices=[device("n1/1", 1)])
    assert await desk.holders() == {"n1/0": "x.t0"}
    await desk.over("x")
    assert await desk.holders() == {}
    await desk.place("y")
    await desk.place("z")
    assert await desk.holders() == {"n1/1": "y.t0"}
    assert await desk.decided("z") == ["blocked insufficient_gpu"]


async def test_a_device_that_falls_sick_while_it_is_held(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=1)
    await running(desk)
    await desk.inventory("n1", devices=[device("n1/0", 0, healthy=False)])
    assert await desk.state("x") == "running"
    await desk.over("x")
    await desk.place("y")
    assert await desk.decided("y") == ["blocked unhealthy"]
    assert await desk.holders() == {}


async def test_a_card_that_moves_to_another_node(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=1)
    await desk.node("n2", gpus=1)
    moved = [device("n2/0", 0), device("n1/0", 1)]
    await desk.inventory("n1", settle=False, devices=[])
    await desk.inventory("n2", devices=moved)
    await desk.place("x", gpus=2)
    assert await desk.decided("x") == ["granted n2"]
    # In the other order, as two facts of one batch.
    await desk.over("x")
    await desk.inventory("n2", settle=False, devices=[device("n2/0", 0)])
    await desk.inventory("n1", devices=[device("n1/0", 0)])
    await desk.place("y")
    await desk.place("z")
    assert sorted((await desk.holders()).values()) == ["y.t0", "z.t0"]


async def test_a_node_that_shrinks_below_what_is_booked(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=4)
    await running(desk, cpus=12)
    await desk.inventory("n1", cpus=8.0, state="suspect")
    await desk.inventory("n1", state="ready", cpus=14.0)
    await desk.place("y", cpus=4)
    assert await desk.decided("y") == ["blocked insufficient_cpu"]
    await desk.over("x")
    assert (await desk.decided("y"))[1:] == ["granted n1"]


async def test_decisions_about_lost_nodes_carry_their_last_contact(desk: PoolDesk) -> None:
    await desk.node("n1")
    await running(desk)
    contact = desk.clock.now() + timedelta(seconds=20)
    desk.clock.advance(60)
    await desk.inventory("n1", state="lost", last_contact=contact)
    [lost] = await desk.decisions(types.AttemptLost)
    assert (lost.last_contact, lost.allocation_ids) == (contact, ["job-x-a1.t0"])
