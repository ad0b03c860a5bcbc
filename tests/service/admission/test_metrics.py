"""What admission measures."""

from dataclasses import replace

import pytest

from support.admission import Desk, HandClock, log_of
from support.readings import Readings
from yard_admission.figures import gauges
from yard_admission.outbox import SCOPE
from yard_events import registry
from yard_obs.catalogue import ADMISSION_WAIT, CYCLE_DURATION, DECISIONS, JOB_COUNT
from yard_runtime.service import Runtime


@pytest.fixture
def readings() -> Readings:
    return Readings()


@pytest.fixture
async def desk(runtime: Runtime, readings: Readings) -> Desk:
    return await Desk.open(replace(runtime, metrics=readings.metrics), HandClock())


async def test_waits_and_decisions(desk: Desk, readings: Readings) -> None:
    await desk.submit("a", gpus=4)
    await desk.submit("b")
    await desk.submit("c", gpus=9)
    await desk.wait(10)
    await desk.exit_after_start("a")
    assert readings.values(ADMISSION_WAIT) == {("default",): 2}
    assert readings.sums(ADMISSION_WAIT) == {("default",): 10}
    assert readings.values(DECISIONS) == {("admitted", "none"): 2, ("waits", "quota"): 1}
    phases = {phase for service, phase in readings.values(CYCLE_DURATION) if service == "admission"}
    assert phases == {"timers", "admit", "explain", "tell"}


async def test_what_is_rolled_back_is_not_counted(desk: Desk, readings: Readings) -> None:
    await desk.submit("a", settle=False)
    await desk.handle(registry.JOBS_REQUESTS, await log_of(desk.runtime, registry.JOBS_REQUESTS))
    with pytest.raises(ValueError, match="not this time"):
        async with desk.store.unit_of_work() as uow:
            await desk.service.scopes[SCOPE](uow, SCOPE)
            raise ValueError("not this time")
    assert (readings.values(DECISIONS), readings.values(ADMISSION_WAIT)) == ({}, {})
    await desk.settle()
    assert readings.values(DECISIONS) == {("admitted", "none"): 1}


async def test_jobs_that_have_not_ended_by_queue_and_state(desk: Desk, readings: Readings) -> None:
    table = gauges(desk.store, readings.metrics)
    await desk.submit("a")
    await desk.submit("b", gpus=4)
    await desk.start("a")
    async with desk.store.reading() as connection:
        await table.read(connection)
    assert readings.values(JOB_COUNT) == {("running", "default"): 1, ("queued", "default"): 1}
    await desk.exit("a")
    async with desk.store.reading() as connection:
        await table.read(connection)
    assert readings.values(JOB_COUNT) == {("admitted", "default"): 1}
    table.forget()
    assert readings.values(JOB_COUNT) == {}
