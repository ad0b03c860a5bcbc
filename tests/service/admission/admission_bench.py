"""What admission itself costs per job: 3,000 jobs from submission to success through its handlers and its cycle.

Run it as a program: `python tests/service/admission/admission_bench.py [--jobs N] [--profile FILE]`, with `tests` on
PYTHONPATH. Decoding, units of work and commits on an embedded PostgreSQL count; what others would do does not.
"""

import argparse
import asyncio
import cProfile
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from support.admission import START, Desk, HandClock, decided, document, log_of, publish
from yard_admission.outbox import SCOPE
from yard_bus.postgres import PostgresBus
from yard_events import registry
from yard_events.base import EventModel
from yard_events.types import (
    AllocationReleased,
    AttemptExited,
    AttemptGranted,
    AttemptStarted,
    PlaceAttempt,
    SubmitJob,
)
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.service import Runtime
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings
from yard_store.engine import create_engine

BATCH = 500
DECISIONS_AT_ONCE = 125


class Stopwatch:
    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._profile = profile

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        if self._profile is not None:
            self._profile.enable()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin
            if self._profile is not None:
                self._profile.disable()


async def consume(desk: Desk, topic: str, watch: Stopwatch, name: str) -> None:
    """What the consumer does, batch by batch: the offset, the handler, the commit."""
    while True:
        first = desk.read[topic]
        with watch.time("decode"):
            records = (await log_of(desk.runtime, topic, first, BATCH))[:BATCH]
        if not records:
            return
        with watch.time(name):
            async with desk.store.unit_of_work() as uow:
                last = records[-1].record.offset + 1
                await uow.advance(topic, 0, first or None, last, records[0].record.ref.incarnation)
                await desk.service.handlers[topic](records, uow)
        desk.read[topic] = last


async def cycles(desk: Desk, watch: Stopwatch) -> None:
    more = True
    while more:
        with watch.time("cycle"):
            async with desk.store.unit_of_work() as uow:
                more = await desk.service.scopes[SCOPE](uow, SCOPE)
                await uow.next_due(SCOPE)


def answers(places: Sequence[PlaceAttempt], kind: type[EventModel], desk: Desk) -> list[EventModel]:
    data = {}
    if kind is AttemptExited:
        end = {"task_rank": 0, "outcome": "succeeded", "reason": "exit_code", "exit_code": 0}
        data = {"outcome": "succeeded", "reason": "exit_code", "exit_code": 0, "tasks": [end]}
    if kind is AllocationReleased:
        data = {"allocation_id": "t0", "granted_at": START}
    return [decided(kind, place, desk.tick(), **data) for place in places]


async def run(desk: Desk, jobs: int, watch: Stopwatch) -> None:
    env = {f"SETTING_{index}": "a value of some length" for index in range(4)}
    for first in range(0, jobs, BATCH):
        batch = [
            SubmitJob(
                job_id=f"job-{number:026}",
                project_id="default",
                spec=document("bench", run={"command": ["python3", "train.py", "--epochs", "3"], "env": env}),
                submitted_by="bench",
                submitted_at=START + timedelta(milliseconds=number),
            )
            for number in range(first, min(first + BATCH, jobs))
        ]
        await publish(desk.runtime, batch, START)
        await consume(desk, registry.JOBS_REQUESTS, watch, "submit")
        await cycles(desk, watch)
    done = 0
    while done < jobs:
        places = (await desk.asked(PlaceAttempt))[done : done + DECISIONS_AT_ONCE]
        for kind in (AttemptGranted, AttemptStarted, AttemptExited, AllocationReleased):
            await publish(desk.runtime, answers(places, kind, desk), START)
            if kind is not AttemptExited:
                await consume(desk, registry.PLACEMENT_DECISIONS, watch, "decisions")
        await cycles(desk, watch)
        done += len(places)


async def main(dsn: str, jobs: int, profile: cProfile.Profile | None) -> None:
    engine = create_engine(dsn, application="bench")
    clock, ids = SystemClock(), SystemIds()
    bus = PostgresBus(engine, clock=clock, ids=ids)
    await bus.migrate()
    await bus.ensure_topics(list(registry.TOPICS.values()))
    runtime = Runtime(engine=engine, bus=bus, clock=clock, ids=ids, instance="bench", internal_token="none")
    desk = await Desk.open(runtime, HandClock(), default_gpu_quota=1024, notice_seconds=1.0)
    watch = Stopwatch(profile)
    await run(desk, jobs, watch)
    ended = await desk.rows("SELECT count(*) FROM admission.jobs WHERE state = 'succeeded'")
    assert ended == [{"count": jobs}], ended
    for name, seconds in watch.seconds.items():
        print(f"{name:10} {1000 * seconds / jobs:.3f} ms/job")
    print(f"{'total':10} {1000 * sum(watch.seconds.values()) / jobs:.3f} ms/job")
    await engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    server = EmbeddedPostgres(EmbeddedSettings(data_dir=folder / "pg"))
    profile = cProfile.Profile() if arguments.profile else None
    try:
        asyncio.run(main(server.ensure_running(), arguments.jobs, profile))
        if profile is not None:
            profile.dump_stats(arguments.profile)
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
