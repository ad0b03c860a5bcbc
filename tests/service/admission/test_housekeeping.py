"""Ended jobs are forgotten after a time that is longer than their requests are kept."""

import pytest
from pydantic import ValidationError

from support.admission import Desk
from yard_admission.cycle import plan_pruning
from yard_admission.settings import AdmissionSettings

DAY = 86_400


async def test_ended_jobs_are_forgotten_and_live_ones_are_not(desk: Desk) -> None:
    async with desk.store.unit_of_work() as uow:
        await plan_pruning(uow)
    await desk.submit("done")
    await desk.exit_after_start("done")
    await desk.submit("live")
    await desk.wait(29 * DAY)
    assert [row["job_id"] for row in await desk.rows("SELECT job_id FROM admission.jobs ORDER BY 1")] == [
        "job-done",
        "job-live",
    ]
    await desk.wait(2 * DAY)
    assert [row["job_id"] for row in await desk.rows("SELECT job_id FROM admission.jobs")] == ["job-live"]


def test_jobs_must_outlive_their_requests() -> None:
    with pytest.raises(ValidationError, match="keep_ended_seconds must be above the retention"):
        AdmissionSettings(keep_ended_seconds=7 * DAY)
