"""Wake-ups: who waits for news of a job, or of anything, learns after the commit that there is some.

A wake-up is only a hint. Whoever wakes reads the tables from its own position, so a hint that comes twice, early or in
a bunch does no harm, and a slow reader holds up nobody.
"""

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from yard_runtime.http import Problem
from yard_store.signals import ANY

JOB_NEWS = "jobs"
"""Kind of news: something of a job is in the tables; key: its id."""
NO_JOB = ""
"""Key of news about nodes."""


class Watch:
    """One waiter. Ask `stopping` after every `wait`: the server is going down and wants its streams to end."""

    __slots__ = ("_event", "_feed")

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed
        self._event = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._feed.stopping

    def wake(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Until woken, at most `seconds`; whether it was woken. What came since the last wait counts."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Feed:
    """The waiters of this process, at most `limit` of them; `open` says how many there are."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self.open = 0
        self._all: set[Watch] = set()
        self._by_job: defaultdict[str, set[Watch]] = defaultdict(set)
        self.stopping = False

    @contextmanager
    def watch(self, job_id: str | None = None) -> Generator[Watch]:
        """Wait for news of one job, or of anything with None. Raises Problem 503 when too many wait already."""
        if self.open >= self._limit or self.stopping:
            raise Problem(
                503, "Service unavailable", "Too many open streams. Try again shortly.", headers={"Retry-After": "5"}
            )
        watch = Watch(self)
        group = self._all if job_id is None else self._by_job[job_id]
        group.add(watch)
        self.open += 1
        try:
            yield watch
        finally:
            self.open -= 1
            group.discard(watch)
            if job_id is not None and not group:
                self._by_job.pop(job_id, None)

    def hear(self, key: str) -> None:
        """News of kind JOB_NEWS, from this instance or another."""
        if key == ANY:
            self._wake_all()
        else:
            self.notify(() if key == NO_JOB else (key,))

    def notify(self, job_ids: Iterable[str]) -> None:
        """Something of these jobs, or with none of them something of nodes, is in the tables now."""
        for watch in self._all:
            watch.wake()
        for job_id in job_ids:
            for watch in self._by_job.get(job_id, ()):
                watch.wake()

    def stop(self) -> None:
        """Every waiter wakes and sees `stopping`."""
        self.stopping = True
        self._wake_all()

    def _wake_all(self) -> None:
        for watch in [*self._all, *(watch for group in self._by_job.values() for watch in group)]:
            watch.wake()
