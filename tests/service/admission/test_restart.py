"""The real service, stopped in the middle of everything and started again: nothing is forgotten, nothing done twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from support.admission import START, decided, document, publish
from support.log import events_of
from yard_admission import app
from yard_admission.settings import AdmissionSettings
from yard_events import registry
from yard_events.types import (
    AttemptExited,
    AttemptGranted,
    AttemptStarted,
    JobFact,
    JobQueued,
    JobSucceeded,
    PlaceAttempt,
    SubmitJob,
)
from yard_runtime.service import Runtime

JOBS = 60


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[None]:
    """The service as a process runs it; killed, not asked, at the end."""
    service = await app.build(AdmissionSettings(default_gpu_quota=8), runtime)
    ready = asyncio.Event()
    running = asyncio.create_task(service.run(ready.set))
    try:
        await ready.wait()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def placed(runtime: Runtime, known: int) -> list[PlaceAttempt]:
    """What placement is asked, as soon as there is more than `known` of it."""
    async with runtime.bus.session(None, [registry.PLACEMENT_REQUESTS]) as session:
        ref = next(iter(await anext(session.assignments())))
        await session.read(ref, known, 1)
    return [e for e in await events_of(runtime, registry.PLACEMENT_REQUESTS) if isinstance(e, PlaceAttempt)]


def submission(number: int) -> SubmitJob:
    return SubmitJob(
        job_id=f"job-{number:03}",
        project_id="default",
        spec=document(f"j{number}"),
        submitted_by="ann",
        submitted_at=START + timedelta(seconds=number),
    )


async def run_some(runtime: Runtime, done: int, until: int) -> int:
    """Grant, start and end what admission places, one after the other, until `until` jobs have been."""
    while done < until:
        for place in (await placed(runtime, done))[done:until]:
            time = START + timedelta(seconds=done)
            micro = timedelta(microseconds=1)
            end = {"outcome": "succeeded", "reason": "exit_code", "exit_code": 0}
            await publish(
                runtime,
                [
                    decided(AttemptGranted, place, time),
                    decided(AttemptStarted, place, time + micro),
                    decided(AttemptExited, place, time + 2 * micro, **end),
                ],
                time,
            )
            done += 1
    return done


async def ended(runtime: Runtime) -> list[str]:
    return [e.job_id for e in await events_of(runtime, registry.JOBS_EVENTS) if isinstance(e, JobSucceeded)]


async def test_stopped_and_started_in_the_middle(runtime: Runtime) -> None:
    async with asyncio.timeout(30):
        async with serving(runtime):
            await publish(runtime, [submission(number) for number in range(JOBS // 2)], START)
            done = await run_some(runtime, 0, 11)
        await publish(runtime, [submission(number) for number in range(JOBS // 2, JOBS)], START)
        async with serving(runtime):
            done = await run_some(runtime, done, 37)
        done = min(done, 37)
        async with serving(runtime):
            await run_some(runtime, done, JOBS)
            await all_told(runtime)
    facts = [e for e in await events_of(runtime, registry.JOBS_EVENTS) if isinstance(e, JobFact)]
    for number in range(JOBS):
        mine = [fact for fact in facts if fact.job_id == f"job-{number:03}" and not _told_again(fact)]
        assert [fact.state for fact in mine] == ["queued", "admitted", "starting", "running", "succeeded"]
    places = [e for e in await events_of(runtime, registry.PLACEMENT_REQUESTS) if isinstance(e, PlaceAttempt)]
    assert [place.job_id for place in places] == [f"job-{number:03}" for number in range(JOBS)]


def _told_again(fact: JobFact) -> bool:
    return isinstance(fact, JobQueued) and fact.reason is not None


async def all_told(runtime: Runtime) -> None:
    """Until the last job's end was published."""
    async with runtime.bus.session(None, [registry.JOBS_EVENTS]) as session:
        ref = next(iter(await anext(session.assignments())))
        offset = 0
        while len(await ended(runtime)) < JOBS:
            offset = (await session.read(ref, offset, 500))[-1].offset + 1
