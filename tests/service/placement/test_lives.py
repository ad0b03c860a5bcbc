"""From request to released devices, on the real ledger."""

import pytest

from support.placement import GIB, PoolDesk
from yard_events import types


async def test_a_task_from_its_request_to_its_release(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=4)
    await desk.place("x", gpus=2)
    assert await desk.holders() == {"n1/0": "x.t0", "n1/1": "x.t0"}
    assert await desk.commands() == ["n1 start x.t0 1"]
    await desk.started("x")
    await desk.exited("x")
    assert await desk.holders() == {"n1/0": "x.t0", "n1/1": "x.t0"}, "held until the devices were seen empty"
    await desk.emptied("x")
    assert await desk.holders() == {}
    assert await desk.decided("x") == ["granted n1", "started", "exited succeeded exit_code", "released t0"]
    await desk.check_bills()


async def test_what_an_agent_is_told(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=4)
    await desk.place("x", gpus=2, cpus=1.5, memory=GIB)
    [start] = await desk.sent()
    assert isinstance(start, types.StartTask)
    assert (start.node, start.epoch, start.allocation_id, start.command_seq) == ("n1", "boot/journal", "job-x-a1.t0", 1)
    work = start.work
    assert (work.device_uuids, work.cpus, work.memory_bytes) == (["n1/0", "n1/1"], 1.5, GIB)
    assert (work.run.command, work.run.env, work.run.workdir) == (["true"], {"A": "1"}, None)
    assert (work.world_size, work.local_rank, work.local_world_size) == (1, 0, 1)
    assert (work.name, work.job_id, work.project_id, work.attempt, work.attempt_id) == (
        "x",
        "job-x",
        "default",
        1,
        "job-x-a1",
    )


async def test_what_the_grant_says(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    [granted] = await desk.decisions(types.AttemptGranted)
    [allocation] = granted.allocations
    assert (allocation.node, allocation.agent_url) == ("n1", "http://n1")
    assert [(d.uuid, d.model) for d in allocation.devices] == [("n1/0", "H100")]
    assert (granted.queue, granted.decision.now, granted.decision.seed) == ("default", desk.clock.now(), 0)
    assert granted.decision.config_hash
    assert granted.decision.engine_version


async def test_ledger_times_rise_strictly_though_the_clock_stands_still(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=3)
    for name in "xyz":
        await desk.place(name, settle=False)
    await desk.settle()
    await desk.over("x")
    desk.clock.advance(-3600)
    await desk.over("y")
    await desk.over("z")
    times = [event.ledger_time for event in await desk.decisions()]
    assert len(times) == 12
    assert times == sorted(set(times))
    await desk.check_bills()


async def test_a_gang_starts_in_three_steps(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.node("n2")
    await desk.place("g", count=2, gpus=2)
    assert await desk.commands() == ["n1 prepare g.t0 1", "n2 prepare g.t1 1"]
    await desk.ready("g", 0)
    assert len(await desk.commands()) == 2
    await desk.ready("g", 1)
    assert (await desk.commands())[2:] == ["n1 start g.t0 2", "n2 start g.t1 2"]
    starts = [c for c in await desk.sent() if isinstance(c, types.StartTask)]
    assert {(start.master_addr, start.master_port) for start in starts} == {("h", 1)}
    assert [start.work.task_rank for start in starts] == [0, 1]
    await desk.started("g", 0, 1)
    await desk.exited("g", 0, 1)
    await desk.emptied("g", 0, 1)
    assert await desk.decided("g") == [
        "granted n1 n2",
        "started",
        "exited succeeded exit_code",
        "released t0",
        "released t1",
    ]
    assert await desk.rows("SELECT * FROM placement.timers WHERE kind = 'start_deadline'") == []


async def test_a_gang_that_does_not_start_in_time_is_stopped_as_a_whole(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("g", count=2)
    await desk.ready("g", 0)
    await desk.wait(59)
    assert await desk.state("g") == "preparing"
    await desk.wait(2)
    assert (await desk.commands())[2:] == ["n1 stop g.t0 2", "n1 stop g.t1 2"]
    await desk.exited("g", 0, 1, outcome="stopped", reason="start_deadline", exit_code=None)
    await desk.emptied("g", 0, 1)
    assert (await desk.decided("g"))[1] == "exited stopped start_deadline"
    assert await desk.holders() == {}


async def test_a_gang_that_started_is_not_stopped_by_its_deadline(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("g", count=2)
    await desk.ready("g", 0, 1)
    await desk.started("g", 0, 1)
    await desk.wait(120)
    assert await desk.state("g") == "running"
    assert not any(" stop " in command for command in await desk.commands())


async def test_a_member_that_fails_stops_the_others(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=3)
    await desk.place("g", count=3)
    await desk.ready("g", 0, 1, 2)
    await desk.started("g", 0, 1, 2)
    await desk.exited("g", 1, code=3)
    assert (await desk.commands())[6:] == ["n1 stop g.t0 3", "n1 stop g.t2 3"]
    await desk.exited("g", 0, 2, outcome="stopped", reason="signal", exit_code=None, signal=15)
    [exited] = await desk.decisions(types.AttemptExited)
    assert (exited.outcome, exited.reason, exited.exit_code) == ("failed", "exit_code", 3)
    assert [(t.task_rank, t.outcome, t.signal) for t in exited.tasks] == [
        (0, "stopped", 15),
        (1, "failed", None),
        (2, "stopped", 15),
    ]


async def test_released_cpu_is_free_for_the_next_in_the_same_cycle(desk: PoolDesk) -> None:
    """The second waits for CPU alone; nothing else would wake the pool again."""
    await desk.node("n1", gpus=2)
    await desk.place("x", cpus=16.0)
    await desk.place("y", cpus=16.0)
    assert await desk.decided("y") == ["blocked insufficient_cpu"]
    await desk.over("x")
    assert await desk.decided("y") == ["blocked insufficient_cpu", "granted n1"]


async def test_a_stop_reaches_a_running_task(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.started("x")
    await desk.stop("x", "max_run_time", 2.5)
    [stop] = [c for c in await desk.sent() if isinstance(c, types.StopTask)]
    assert (stop.allocation_id, stop.command_seq, stop.grace_seconds, stop.reason) == (
        "job-x-a1.t0",
        2,
        2.5,
        "max_run_time",
    )
    await desk.stop("x", "cancelled")
    assert len(await desk.sent()) == 2, "a stop is sent once"
    await desk.exited("x", outcome="stopped", reason="signal", exit_code=None, signal=15)
    assert (await desk.decided("x"))[2:] == ["exited stopped max_run_time"]


async def test_place_and_stop_in_one_batch(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x", settle=False)
    await desk.stop("x")
    assert await desk.decided("x") == ["exited stopped cancelled"]
    assert await desk.commands() == []


@pytest.mark.parametrize("granted", [False, True])
async def test_withdrawal(desk: PoolDesk, granted: bool) -> None:
    await desk.node("n1")
    await desk.place("x", gpus=2 if granted else 3)
    before = await desk.decided("x")
    await desk.withdraw("x")
    after = [] if granted else ["exited stopped too_large"]
    assert await desk.decided("x") == [*before, *after]
    assert await desk.state("x") == ("starting" if granted else "ended")


async def test_a_withdrawn_one_is_not_placed_by_the_cycle_that_could(desk: PoolDesk) -> None:
    await desk.place("x")
    await desk.node("n1", settle=False)
    await desk.withdraw("x")
    assert await desk.decided("x") == ["blocked no_nodes!", "exited stopped no_nodes"]
    assert await desk.holders() == {}


async def test_order_is_priority_then_age_then_id(desk: PoolDesk) -> None:
    await desk.place("young", age=9, settle=False)
    await desk.place("b", age=5, settle=False)
    await desk.place("a", age=5, settle=False)
    await desk.place("urgent", age=99, priority=10, settle=False)
    await desk.node("n1", gpus=4)
    granted = [event.job_id for event in await desk.decisions(types.AttemptGranted)]
    assert granted == ["job-urgent", "job-a", "job-b", "job-young"]
