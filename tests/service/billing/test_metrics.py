"""What billing measures: GPU time of closed spans, each once."""

from dataclasses import replace

from support.billing import billing_on, granted, released
from support.feed import ManualClock
from support.readings import Readings
from yard_obs.catalogue import BILLED_GPU_TIME
from yard_runtime.service import Runtime


async def test_gpu_time_by_project_and_model(runtime: Runtime) -> None:
    readings = Readings()
    billing = await billing_on(replace(runtime, metrics=readings.metrics), ManualClock())
    await billing.send(granted("a", 0), granted("b", 0, project="other"))
    assert readings.values(BILLED_GPU_TIME) == {}
    await billing.send(released("a", 1.5), released("b", 2, project="other"))
    before = readings.values(BILLED_GPU_TIME)
    await billing.feed.deliver(billing.feed.records)
    assert readings.values(BILLED_GPU_TIME) == before
    [model] = {model for _, model in before}
    assert before == {("default", model): 1.5, ("other", model): 2}
