"""Starts and stops that do not work at once, and statuses that come late."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from yard_agent.journal import Journal
from yard_agent.journal_rows import JournaledAllocation
from yard_agent.keeper_client import KeeperUnavailable, TaskLaunch, TaskState, TaskStatus
from yard_agent.phases import Phase
from yard_agent.simulated_driver import SimulatedDriver
from yard_agent.simulated_executor import SimulatedExecutor
from yard_agent.task_control import TaskControl
from yard_agent.task_facts import TaskFacts
from yard_agent.task_files import TaskFiles
from yard_agent.task_traces import TaskTraces
from yard_domain.errors import Permanent
from yard_domain.reasons import Reason
from yard_events.base import EventModel
from yard_events.job_document import RunDocument
from yard_events.types import DevicesEmptied, TaskExited, TaskStarted, TaskWork


class HurriedClock:
    """Nobody waits; every wait is counted."""

    def __init__(self) -> None:
        self.waits = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        await asyncio.sleep(0)


class BusyExecutor(SimulatedExecutor):
    """Takes a call only after it was made some times."""

    def __init__(self, clock: HurriedClock, refusals: int, error: type[Exception] = KeeperUnavailable) -> None:
        super().__init__(clock, run_seconds=1000)
        self.refusals = refusals
        self.error = error
        self.calls: list[str] = []
        self.graces: list[float] = []

    async def start(self, launch: TaskLaunch) -> TaskStatus:
        self._call(f"start {launch.allocation_id}")
        return await super().start(launch)

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus | None:
        self._call(f"stop {allocation_id}")
        self.graces.append(grace_seconds)
        return await super().stop(allocation_id, grace_seconds)

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if self.refusals > 0:
            self.refusals -= 1
            raise self.error("not now")


class Silent:
    def strike_published(self) -> None: ...

    def wake(self) -> None: ...


class Bench:
    """Control and facts of one node over a journal, with what they tell."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.journal = journal
        self.clock = HurriedClock()
        self.told: list[EventModel] = []
        self.holders: dict[str, set[int]] = {}
        self.driver = SimulatedDriver("2xH100-80GB", "n1", lambda uuid: self.holders.get(uuid, ()))
        self.uuid = self.driver.devices()[0].uuid
        self.files = TaskFiles(folder)
        self.traces = TaskTraces("n1")
        self.facts = TaskFacts(
            node="n1",
            journal=journal,
            driver=self.driver,
            clock=self.clock,
            empty_check_seconds=0.01,
            max_output_bytes=1000,
            spool=Silent(),
            tell=self._hear,
            traces=self.traces,
            holders=self.holders,
        )

    def _hear(self, event: EventModel, allocation: JournaledAllocation | None = None) -> None:
        self.told.append(event)

    @asynccontextmanager
    async def controlled(self, executor: BusyExecutor) -> AsyncIterator[TaskControl]:
        control = TaskControl(
            node="n1",
            journal=self.journal,
            driver=self.driver,
            executor=executor,
            files=self.files,
            facts=self.facts,
            traces=self.traces,
            clock=self.clock,
            environment={},
        )
        running = asyncio.create_task(control.run())
        yield control
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()

    def put(self, allocation_id: str, phase: Phase) -> None:
        work = TaskWork(
            job_id="j", project_id="p", name="n", attempt=1, attempt_id="j-a1", task_rank=0, world_size=1, local_rank=0,
            local_world_size=1, device_uuids=[self.uuid], run=RunDocument(command=["train"]),
        )  # fmt: skip
        with self.journal.transaction():
            self.journal.record_command(allocation_id, 1, state=phase, work=work)

    def stop(self, allocation_id: str, grace_seconds: float = 30.0) -> None:
        with self.journal.transaction():
            self.journal.record_stop(allocation_id, Phase.STOPPING, Reason.CANCELLED, grace_seconds)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Journal(tmp_path / "journal.sqlite", new_journal_id="j") as journal:
        yield Bench(tmp_path, journal)


async def until_calls(executor: BusyExecutor, count: int) -> None:
    async with asyncio.timeout(5):
        while len(executor.calls) < count:
            await asyncio.sleep(0)


async def test_a_start_is_tried_again_until_it_is_taken(bench: Bench) -> None:
    executor = BusyExecutor(bench.clock, refusals=3)
    bench.put("a", Phase.STARTING)
    async with bench.controlled(executor) as control:
        control.want(["a"])
        await until_calls(executor, 4)
    assert executor.calls == ["start a"] * 4
    assert [status.allocation_id for status in await executor.statuses()] == ["a"]
    assert bench.clock.waits == 3


async def test_a_stop_that_comes_while_the_start_is_refused_wins(bench: Bench) -> None:
    executor = BusyExecutor(bench.clock, refusals=2)
    bench.put("a", Phase.STARTING)
    async with bench.controlled(executor) as control:
        control.want(["a"])
        await until_calls(executor, 1)
        bench.stop("a")
        control.want(["a"])
        await until_calls(executor, 3)
    assert executor.calls == ["start a", "stop a", "stop a"]
    assert await executor.statuses() == [], "it never began"
    assert [type(event) for event in bench.told] == [TaskExited, DevicesEmptied]
    assert bench.told[0].model_dump()["outcome"] == "stopped"


async def test_a_start_that_can_never_work_is_told(bench: Bench) -> None:
    executor = BusyExecutor(bench.clock, refusals=1, error=Permanent)
    for name in ("a", "b"):
        bench.put(name, Phase.STARTING)
    async with bench.controlled(executor) as control:
        control.want(["a", "b"])
        await until_calls(executor, 2)
    [end] = [event for event in bench.told if isinstance(event, TaskExited)]
    assert (end.allocation_id, end.outcome, end.reason, end.detail) == ("a", "failed", "start_failed", "not now")
    assert [status.allocation_id for status in await executor.statuses()] == ["b"]


async def test_a_device_that_left_since_the_command_ends_the_task(bench: Bench) -> None:
    executor = BusyExecutor(bench.clock, refusals=0)
    bench.put("a", Phase.STARTING)
    bench.driver = SimulatedDriver("1xL4-24GB", "another", lambda _uuid: ())
    async with bench.controlled(executor) as control:
        control.want(["a"])
        async with asyncio.timeout(5):
            while len(bench.told) < 2:
                await asyncio.sleep(0)
    assert executor.calls == []
    assert bench.told[0].model_dump()["reason"] == "start_failed"


async def test_the_grace_is_the_one_that_was_asked_for(bench: Bench) -> None:
    executor = BusyExecutor(bench.clock, refusals=0)
    bench.put("a", Phase.STARTING)
    async with bench.controlled(executor) as control:
        control.want(["a"])
        await until_calls(executor, 1)
        bench.stop("a", 12.5)
        control.want(["a"])
        await until_calls(executor, 2)
    assert executor.graces == [12.5]


def test_a_status_that_comes_late_does_not_bring_a_process_back(bench: Bench) -> None:
    """The executor's changes may repeat what a list of statuses has overtaken."""
    bench.put("a", Phase.STARTING)
    running = TaskStatus("a", TaskState.RUNNING, pid=7)
    gone = TaskStatus("a", TaskState.EXITED, pid=7, exit_code=0, reason=Reason.EXIT_CODE, emptied=True)
    assert bench.facts.record([gone]) == ["a"]
    assert bench.facts.record([running, gone]) == ["a"]
    assert [type(event) for event in bench.told] == [TaskStarted, TaskExited, DevicesEmptied]
    assert bench.driver.processes(bench.uuid) == []


def test_the_end_of_followers_is_kept_only_while_somebody_runs(bench: Bench) -> None:
    bench.put("a", Phase.STARTING)
    event = bench.facts.emptied("a")
    assert bench.facts.emptied("a") is event
    assert not event.is_set()
    bench.facts.record([TaskStatus("a", TaskState.EXITED, exit_code=0, reason=Reason.EXIT_CODE, emptied=True)])
    assert event.is_set()
    for name in ("a", "unknown"):
        assert bench.facts.emptied(name).is_set()
    assert bench.facts._followed == {}
