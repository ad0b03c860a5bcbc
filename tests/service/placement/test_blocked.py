"""Why something waits: said when the reason changes and the wait is worth an event, and never in vain."""

from support.placement import PoolDesk, device
from yard_events import types
from yard_runtime.service import Runtime


async def test_a_short_wait_is_not_worth_an_event(runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime, blocked_notice_seconds=1.0)
    await desk.node("n1", gpus=1)
    await desk.place("x")
    await desk.place("y")
    assert await desk.decided("y") == []
    await desk.over("x")
    assert await desk.decided("y") == ["granted n1"]
    await desk.wait(5)
    assert len(await desk.decided("y")) == 1


async def test_a_longer_one_is_without_anything_else_happening(runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime, blocked_notice_seconds=1.0)
    await desk.node("n1", gpus=1)
    await desk.place("x")
    await desk.place("y")
    await desk.wait(0.5)
    assert await desk.decided("y") == []
    await desk.wait(2)
    assert await desk.decided("y") == ["blocked insufficient_gpu"]
    await desk.wait(3600)
    assert len(await desk.decided("y")) == 1


async def test_the_wait_counts_from_when_placement_was_asked(runtime: Runtime) -> None:
    """A job may have waited for quota for days; that it finds no device at the first look is still no news."""
    desk = await PoolDesk.open(runtime, blocked_notice_seconds=1.0)
    await desk.node("n1", gpus=1)
    await desk.place("x")
    await desk.place("old", age=-86_400)
    assert await desk.decided("old") == []


async def test_the_hopeless_learn_it_at_once(runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime, blocked_notice_seconds=60.0)
    await desk.node("n1", gpus=2)
    await desk.place("x", gpus=3)
    [blocked] = await desk.decisions(types.AttemptBlocked)
    assert (blocked.reason, blocked.hopeless) == ("too_large", True)
    assert blocked.detail == "1 tasks asked for; the empty pool holds 0 like it"


async def test_only_a_change_of_the_reason_is_told(desk: PoolDesk) -> None:
    await desk.place("x", gpus=2)
    await desk.node("n1", gpus=2)
    await desk.place("y", gpus=2)
    await desk.place("z")
    assert await desk.decided("y") == ["blocked insufficient_gpu"]
    assert await desk.decided("z") == ["blocked insufficient_gpu"]
    await desk.inventory("n1", cordoned=True)
    await desk.inventory("n1", state="suspect")
    await desk.inventory("n1", cordoned=False, state="ready")
    expected = ["insufficient_gpu", "cordoned", "unhealthy", "insufficient_gpu"]
    assert await desk.decided("y") == [f"blocked {reason}" for reason in expected]
    await desk.over("x")
    assert (await desk.decided("y"))[4:] == ["granted n1"]


async def test_behind_an_earlier_one(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=2)
    await desk.place("x")
    await desk.place("large", gpus=2)
    await desk.place("small")
    assert await desk.decided("small") == ["blocked behind_earlier"]
    await desk.over("x")
    assert (await desk.decided("large"))[1:] == ["granted n1"]
    assert (await desk.decided("small"))[1:] == ["blocked insufficient_gpu"]
    await desk.over("large")
    assert (await desk.decided("small"))[2:] == ["granted n1"]


async def test_a_cordon_keeps_new_work_out_and_old_work_in(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=2)
    await desk.place("x")
    await desk.inventory("n1", cordoned=True)
    await desk.place("y")
    assert await desk.decided("y") == ["blocked cordoned"]
    assert await desk.state("x") == "starting"
    await desk.over("x")
    assert await desk.decided("y") == ["blocked cordoned"]
    await desk.inventory("n1", cordoned=False)
    assert (await desk.decided("y"))[1:] == ["granted n1"]


async def test_a_sick_device_gets_no_work(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=2)
    await desk.inventory("n1", devices=[device("n1/0", 0, healthy=False), device("n1/1", 1)])
    await desk.place("x")
    await desk.place("y", gpus=2)
    assert await desk.holders() == {"n1/1": "x.t0"}
    assert await desk.decided("y") == ["blocked unhealthy"]
    await desk.inventory("n1", devices=[device("n1/0", 0), device("n1/1", 1)])
    await desk.over("x")
    assert (await desk.decided("y"))[1:] == ["blocked insufficient_gpu", "granted n1"]


async def test_jobs_behind_a_glance_are_placed_and_told_too(runtime: Runtime) -> None:
    """A look begins with the head; what is behind must neither starve beside free devices nor wait without reason."""
    desk = await PoolDesk.open(runtime, pending_glance=2, pending_window=100, blocked_notice_seconds=1.0)
    await desk.node("n1", gpus=1)
    await desk.node("n2", gpus=4)
    await desk.place("busy", gpus=4)
    for number in range(12):
        await desk.place(f"large{number}", gpus=4, settle=False)
    await desk.place("small")
    await desk.place("small2")
    assert await desk.decided("small") == ["granted n1"]
    await desk.wait(3)
    assert await desk.decided("large11") == ["blocked insufficient_gpu"]
    assert await desk.decided("small2") == ["blocked insufficient_gpu"]


async def test_who_comes_behind_a_glance_is_told_though_nothing_changes(runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime, pending_glance=1, blocked_notice_seconds=1.0)
    await desk.node("n1", gpus=1)
    await desk.place("busy")
    await desk.place("first")
    await desk.wait(3)
    await desk.place("second")
    await desk.wait(3)
    assert await desk.decided("second") == ["blocked insufficient_gpu"]


async def test_a_burst_larger_than_a_look_is_placed_to_the_end(runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime, pending_glance=1, pending_window=3)
    await desk.node("n1", gpus=16)
    for number in range(12):
        await desk.place(f"x{number}", settle=False)
    await desk.settle()
    assert len(await desk.holders()) == 12
