"""Billing driven step by step: placement's decisions in, lines and usage out. Times are seconds after START."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import text

from support.feed import START, Feed, ManualClock, at
from support.log import events_of
from yard_billing.app import build
from yard_billing.settings import BillingSettings
from yard_events.registry import BILLING_USAGE, PLACEMENT_DECISIONS
from yard_events.types import (
    AllocationReleased,
    AttemptGranted,
    AttemptLost,
    AttemptRecovered,
    DecisionRecord,
    GrantedAllocation,
    GrantedDevice,
    UsageRecorded,
)
from yard_runtime.service import EventService, Runtime


def second(number: float) -> datetime:
    return START + timedelta(microseconds=round(number * 1_000_000))


def job_id(name: str) -> str:
    """A job id that is recognised by eye: job-000…a."""
    return f"job-{name:0>26}"


def _decision(job: str, ledger_time: float, project: str) -> dict:
    return {
        "cluster": "local",
        "pool": "default",
        "attempt_id": f"att-{job}",
        "job_id": job_id(job),
        "project_id": project,
        "attempt": 1,
        "ledger_time": second(ledger_time),
    }


def granted(
    job: str, time: float, *, models: Iterable[Iterable[str]] = (("H100",),), project: str = "default", queue="default"
) -> AttemptGranted:
    """`models`: of the devices of each task. The allocation of rank r is `<job>/r`."""
    allocations = [
        GrantedAllocation(
            allocation_id=f"{job}/{rank}",
            task_rank=rank,
            node="n1",
            devices=[GrantedDevice(uuid=f"GPU-{job}-{rank}-{n}", model=model) for n, model in enumerate(devices)],
        )
        for rank, devices in enumerate(models)
    ]
    record = DecisionRecord(now=second(time), seed=0, config_hash="", engine_version="test")
    return AttemptGranted(**_decision(job, time, project), queue=queue, allocations=allocations, decision=record)


def released(job: str, time: float, *, granted_at: float = 0, rank: int = 0, project="default") -> AllocationReleased:
    return AllocationReleased(
        **_decision(job, time, project), allocation_id=f"{job}/{rank}", granted_at=second(granted_at)
    )


def lost(job: str, time: float, *, last_contact: float, ranks: Iterable[int] = (0,), project="default") -> AttemptLost:
    return AttemptLost(
        **_decision(job, time, project),
        last_contact=second(last_contact),
        allocation_ids=[f"{job}/{rank}" for rank in ranks],
    )


def recovered(job: str, time: float, *, ranks: Iterable[int] = (0,), project="default") -> AttemptRecovered:
    return AttemptRecovered(**_decision(job, time, project), allocation_ids=[f"{job}/{rank}" for rank in ranks])


class Billing:
    def __init__(self, service: EventService, runtime: Runtime, clock: ManualClock):
        self.service = service
        self.store = service.store
        self.runtime = runtime
        self.clock = clock
        self.feed = Feed(self.store, service.handlers[PLACEMENT_DECISIONS], "yard/placement")

    async def send(self, *events) -> None:
        await self.feed.send(*events)

    async def published(self) -> list[UsageRecorded]:
        return [event for event in await events_of(self.runtime, BILLING_USAGE) if isinstance(event, UsageRecorded)]

    async def lines(self) -> list[tuple]:
        """(allocation, model, span, since, until, device-µs), times in seconds after START."""
        return [
            (
                row["allocation_id"],
                row["model"],
                row["span"],
                (row["since"] - START).total_seconds(),
                (row["until"] - START).total_seconds(),
                row["device_micros"],
            )
            for row in await self.rows("usage_lines")
        ]

    async def rows(self, table: str) -> list[dict]:
        async with self.store.reading() as connection:
            found = await connection.execute(text(f"SELECT * FROM billing.{table} ORDER BY 1, 2, 3"))
            return [dict(row) for row in found.mappings()]


async def billing_on(runtime: Runtime, clock: ManualClock) -> Billing:
    timed = at(runtime, clock)
    service = await build(BillingSettings(), timed)
    assert isinstance(service, EventService)
    return Billing(service, timed, clock)
