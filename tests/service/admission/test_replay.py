"""INV-8: delivering any event twice, or a topic again from any offset, changes nothing and says nothing."""

from support.admission import TOPICS_IN, Desk, log_of


async def story(desk: Desk) -> None:
    """Something of everything, with jobs left in every state in which a job can be."""
    await desk.node("n1")
    await desk.submit("done", max_run="60s")
    await desk.start("done")
    await desk.exit("done")
    await desk.submit("failed", attempts=2)
    for _ in range(2):
        await desk.start("failed")
        await desk.exit("failed", "failed", code=1)
    await desk.submit("nowhere", queue="nosuch")
    await desk.submit("hopeless")
    await desk.block("hopeless", "wrong_model", hopeless=True)
    await desk.exit("hopeless", "stopped", "wrong_model", None)
    await desk.node("n1", state="lost")
    await desk.node("n1")
    await desk.block("hopeless", "wrong_model", hopeless=True)
    await desk.submit("lost", max_run="60s")
    await desk.start("lost")
    await desk.lose("lost")
    await desk.recover("lost")
    await desk.lose("lost")
    await desk.submit("cancelling")
    await desk.start("cancelling")
    await desk.cancel("cancelling")
    await desk.submit("running", attempts=3, max_run="300s")
    await desk.start("running")
    await desk.exit("running", "failed", code=1)
    await desk.block("running", "insufficient_gpu")
    await desk.block("running", "behind_earlier")
    await desk.start("running")
    await desk.submit("expiring", max_run="1s")
    await desk.start("expiring")
    await desk.wait(2)
    await desk.submit("blocked")
    await desk.block("blocked", "insufficient_gpu")
    await desk.block("blocked", "insufficient_cpu")
    await desk.submit("large", gpus=5)
    await desk.submit("waiting", gpus=4)
    await desk.submit("gone", gpus=4)
    await desk.cancel("gone")


EXPECTED = {
    "done": "succeeded",
    "failed": "failed",
    "nowhere": "failed",
    "hopeless": "queued",
    "lost": "lost",
    "cancelling": "cancelling",
    "running": "running",
    "expiring": "running",
    "blocked": "queued",
    "large": "queued",
    "waiting": "queued",
    "gone": "cancelled",
}


async def test_every_topic_again_from_its_beginning(desk: Desk) -> None:
    await story(desk)
    assert {name: (await desk.job(name))["state"] for name in EXPECTED} == EXPECTED
    before = await desk.everything()
    for topic in TOPICS_IN:
        await desk.handle(topic, await log_of(desk.runtime, topic))
        assert await desk.everything() == before, topic
    desk.dirty = True
    await desk.settle()
    assert await desk.everything() == before


async def test_every_topic_again_one_by_one_from_every_offset(desk: Desk) -> None:
    await story(desk)
    before = await desk.everything()
    for topic in TOPICS_IN:
        records = await log_of(desk.runtime, topic)
        for first in range(0, len(records), 5):
            for record in records[first : first + 8]:
                await desk.handle(topic, [record])
        assert await desk.everything() == before, topic
