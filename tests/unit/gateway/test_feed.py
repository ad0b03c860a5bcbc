"""Wake-ups: none is lost, and nobody wakes for what does not concern it."""

import asyncio

import pytest

from yard_gateway.feed import Feed
from yard_runtime.http import Problem


async def test_news_that_came_before_the_wait_counts() -> None:
    feed = Feed(limit=1)
    with feed.watch("job-1") as watch:
        feed.notify(["job-1"])
        assert await watch.wait(0.001) is True
        assert await watch.wait(0.001) is False


async def test_each_waiter_wakes_for_its_own_news() -> None:
    feed = Feed(limit=3)
    with feed.watch() as everything, feed.watch("job-1") as one, feed.watch("job-2") as other:
        feed.notify(["job-1"])
        assert [await watch.wait(0) for watch in (everything, one, other)] == [True, True, False]
        feed.notify(())
        assert [await watch.wait(0) for watch in (everything, one, other)] == [True, False, False]


async def test_all_who_wait_for_one_job_wake() -> None:
    feed = Feed(limit=20)

    async def follow(ready: asyncio.Barrier) -> bool:
        with feed.watch("job-1") as watch:
            await ready.wait()
            return await watch.wait(20)

    ready = asyncio.Barrier(21)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow(ready)) for _ in range(20)]
        await ready.wait()
        feed.notify(["job-1"])
    assert all(task.result() for task in tasks)


def test_places_are_given_back_and_no_more_are_given_than_there_are() -> None:
    feed = Feed(limit=2)
    for _ in range(5):
        with feed.watch(), feed.watch("job-1"):
            assert feed.open == 2
            with pytest.raises(Problem) as caught, feed.watch("job-2"):
                pass
            assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "5")
    assert feed.open == 0


async def test_stopping_wakes_everybody_and_takes_nobody_new() -> None:
    feed = Feed(limit=3)
    with feed.watch() as everything, feed.watch("job-1") as one:
        feed.stop()
        assert [await watch.wait(20) for watch in (everything, one)] == [True, True]
        assert (everything.stopping, one.stopping) == (True, True)
        with pytest.raises(Problem), feed.watch():
            pass
