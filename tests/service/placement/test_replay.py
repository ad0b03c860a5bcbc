"""INV-8: delivering any event twice, or a topic again from any offset, changes nothing and says nothing."""

import pytest

from support.admission import log_of
from support.placement import TOPICS_IN, PoolDesk, device


async def story(desk: PoolDesk) -> None:
    """Something of everything, with attempts left in every state in which an attempt can be."""
    await desk.node("n1", gpus=4)
    await desk.node("n2", gpus=4)
    await desk.node("n3", gpus=1)
    await desk.node("n4", gpus=4)
    await desk.inventory("n4", cordoned=True)
    await desk.place("done")
    await desk.over("done")
    await desk.place("gang", count=2, gpus=1)
    await desk.ready("gang", 0, 1)
    await desk.started("gang", 0, 1)
    await desk.exited("gang", 0, code=1)
    await desk.report("n1", ("gang.t1", 3, "stopping"))
    await desk.exited("gang", 1, outcome="stopped", reason="signal", exit_code=None, signal=9)
    await desk.emptied("gang", 0)  # the other one is still emptying
    await desk.place("withdrawn", gpus=5)
    await desk.withdraw("withdrawn")
    await desk.place("stopped", gpus=5)
    await desk.stop("stopped")
    await desk.place("moved", gpus=1)
    await desk.started("moved")
    await desk.inventory("n3", state="lost")
    await desk.inventory("n3", state="ready")
    await desk.registers("n3", "boot2/journal")
    await desk.inventory("n3", boot_id="boot2", devices=[device("n3/0", 0), device("n3/1", 1)])
    await desk.place("starting")
    await desk.place("running", gpus=2)
    await desk.started("running")
    await desk.place("preparing", count=2)
    await desk.ready("preparing", 0)
    await desk.place("stopping")
    await desk.started("stopping")
    await desk.stop("stopping")
    await desk.node("n5", gpus=1, model="A100")
    await desk.place("lost", gpu_models=["A100"])
    await desk.started("lost")
    await desk.inventory("n5", state="lost")
    desk.clock.advance(30)
    await desk.report("n1")
    await desk.place("waiting", gpus=4)
    await desk.place("hopeless", gpus=9)


async def states(desk: PoolDesk) -> set[str]:
    return {row["state"] for row in await desk.rows("SELECT DISTINCT state FROM placement.attempts")}


async def test_the_story_has_every_state(desk: PoolDesk) -> None:
    await story(desk)
    assert await states(desk) == {"pending", "preparing", "starting", "running", "stopping", "lost", "ended"}


async def test_every_topic_again_from_its_beginning(desk: PoolDesk) -> None:
    await story(desk)
    before = await desk.everything()
    for topic in TOPICS_IN:
        await desk.handle(topic, await log_of(desk.runtime, topic))
        desk.dirty = True
        await desk.settle()
        assert await desk.everything() == before, topic


@pytest.mark.parametrize("size", [1, 7])
async def test_every_topic_again_in_pieces_with_a_cycle_after_each(desk: PoolDesk, size: int) -> None:
    """The state that an old fact alone would give must not show, not even until the next one."""
    await story(desk)
    before = await desk.everything()
    for topic in TOPICS_IN:
        records = await log_of(desk.runtime, topic)
        for first in range(0, len(records), size):
            await desk.handle(topic, records[first : first + size])
            await desk.cycle()
            assert await desk.everything() == before, (topic, first, records[first].data)


async def test_a_restart_with_nothing_but_the_tables_changes_nothing(desk: PoolDesk) -> None:
    await story(desk)
    before = await desk.everything()
    desk = await desk.reopened()
    await desk.settle()
    assert await desk.everything() == before
