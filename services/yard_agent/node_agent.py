"""One node's agent: commands in, tasks run, facts out. Everything it must not forget is in its journal first."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from yard_agent.driver import GpuDriver
from yard_agent.environment import task_environment
from yard_agent.executor import Executor
from yard_agent.journal import Journal, JournaledAllocation, Position
from yard_agent.keeper_client import TaskLaunch, TaskStatus
from yard_agent.publisher import Publisher
from yard_agent.registration import NodeIdentity
from yard_agent.settings import AgentSettings, NodeSettings
from yard_agent.task_facts import TaskFacts
from yard_bus.consumer import receive
from yard_bus.protocol import Bus, PartitionRef, Record
from yard_domain.errors import Permanent, Retryable
from yard_domain.reasons import Reason
from yard_domain.states import Outcome
from yard_events.base import EventModel
from yard_events.types import (
    DevicesEmptied,
    NodeReport,
    PrepareTask,
    ReportedAllocation,
    StartTask,
    StopTask,
    TaskExited,
    TaskReady,
)
from yard_store.ports import Clock, Ids

_log = structlog.get_logger("yard.agent")

PREPARED = "prepared"
STARTING = "starting"
STOPPING = "stopping"


class NodeAgent:
    """Built once per node and process; `run` serves until cancelled."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        node: NodeSettings,
        identity: NodeIdentity,
        folder: Path,
        journal: Journal,
        driver: GpuDriver,
        executor: Executor,
        bus: Bus,
        clock: Clock,
        ids: Ids,
        environment: Mapping[str, str],
    ) -> None:
        self.name = node.name
        self.journal = journal
        self._settings = settings
        self._identity = identity
        self._folder = folder
        self._driver = driver
        self._executor = executor
        self._clock = clock
        self._ids = ids
        self._environment = environment
        self.publisher = Publisher(journal, bus, clock, node.name, settings.publish_batch)
        self.facts = TaskFacts(journal, driver, clock, settings.empty_check_seconds, self.tell)
        self.registered = asyncio.Event()
        self._read_up_to: dict[PartitionRef, int] = {}
        self._group: asyncio.TaskGroup | None = None

    # --- what it says ------------------------------------------------------------------------------------------------

    def tell(self, event: EventModel) -> None:
        """Queue an event; inside of a transaction of the journal."""
        self.journal.spool(
            event,
            event_id=self._ids.new("evt"),
            source=f"yard/agent/{self.name}/{self.journal.journal_id}",
            time=self._clock.now(),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._executor.run(), name=f"{self.name} executor")
            await self._resume()
            self._register()
            group.create_task(self.publisher.run(), name=f"{self.name} publisher")
            group.create_task(self._watch_tasks(), name=f"{self.name} tasks")
            group.create_task(self._report(), name=f"{self.name} report")
            self.registered.set()

    # --- coming back -------------------------------------------------------------------------------------------------

    async def _resume(self) -> None:
        """Bring journal and executor together after whatever ended the last run of this agent."""
        rebooted = self.journal.remembered("boot_id") not in (None, self._identity.boot_id)
        with self.journal.transaction():
            self.journal.remember("boot_id", self._identity.boot_id)
            if rebooted:
                # A new epoch: placement closes what the old one had, so nothing of it is told.
                for allocation in self.journal.live_allocations():
                    self.journal.record_end(allocation.allocation_id, "rebooted", self._clock.now())
                    self.journal.record_emptied(allocation.allocation_id)
        known = {allocation.allocation_id for allocation in self.journal.live_allocations()}
        statuses = {status.allocation_id: status for status in await self._executor.statuses()}
        for stray in sorted(set(statuses) - known):
            await self._end_stray(stray, emptied=statuses[stray].emptied)
        for allocation in self.journal.live_allocations():
            if allocation.state == STARTING and allocation.allocation_id not in statuses:
                # Recorded, but never handed over: the executor knows every task that ever began.
                await self._start(allocation)
            elif allocation.state == STOPPING:
                await self._executor.stop(allocation.allocation_id, 0.0)

    async def _end_stray(self, allocation_id: str, *, emptied: bool) -> None:
        """A task of a journal that is gone, or that was told of completely before the executor forgot it."""
        if not emptied:
            _log.warning("ending a task that the journal does not know", node=self.name, allocation=allocation_id)
            await self._executor.stop(allocation_id, 0.0)
            async for status in self._executor.changes():
                if status.allocation_id == allocation_id and status.emptied:
                    break
        await self._executor.forget(allocation_id)

    def _register(self) -> None:
        with self.journal.transaction():
            self.tell(self._identity.registration(self._driver, self._clock.now()))

    # --- commands ----------------------------------------------------------------------------------------------------

    def next_offset(self, ref: PartitionRef) -> int | None:
        """Where this node's reading of commands goes on; None for the oldest there is."""
        position = self.journal.position(ref.topic, ref.partition)
        return position.next_offset if position is not None and position.incarnation == ref.incarnation else None

    def note_read(self, ref: PartitionRef, next_offset: int) -> None:
        """Everything of this node up to here was obeyed; the journal learns it with the next report."""
        self._read_up_to[ref] = next_offset

    def _record_read(self) -> None:
        for ref, next_offset in self._read_up_to.items():
            if next_offset > (self.next_offset(ref) or 0):
                self.journal.advance(ref.topic, ref.partition, Position(ref.incarnation, next_offset))
        self._read_up_to.clear()

    async def obey(self, ref: PartitionRef, records: Sequence[Record], next_offset: int) -> None:
        """Record a batch of this node's commands with the position behind them, then act on them in order."""
        seen_up_to = self.next_offset(ref) or 0
        actions: list[Callable[[], object]] = []
        with self.journal.transaction():
            for record in records:
                if record.offset < seen_up_to:
                    continue
                try:
                    command = receive(record).data
                except Permanent as error:
                    _log.error("unreadable command", node=self.name, offset=record.offset, error=str(error))
                    continue
                if isinstance(command, PrepareTask | StartTask | StopTask):
                    self._record(command, actions)
            self.journal.advance(ref.topic, ref.partition, Position(ref.incarnation, next_offset))
            self.publisher.strike_published()
        self.publisher.wake()
        for action in actions:
            result = action()
            if asyncio.iscoroutine(result):
                await result

    def _record(self, command: PrepareTask | StartTask | StopTask, actions: list[Callable[[], object]]) -> None:
        if command.epoch != self._identity.epoch:
            _log.warning("command of another epoch", node=self.name, allocation=command.allocation_id)
            return
        if not self.journal.command_is_new(command.allocation_id, command.command_seq):
            return
        before = self.journal.allocation(command.allocation_id)
        if isinstance(command, PrepareTask):
            self._prepare(command)
        elif isinstance(command, StartTask):
            self._record_start(command, actions)
        else:
            self._record_stop(command, before, actions)

    def _prepare(self, command: PrepareTask) -> None:
        addr, port = None, None
        if command.work.task_rank == 0:
            addr, port = self._settings.advertise_addr, free_port(self._settings.advertise_addr)
        self.journal.record_command(
            command.allocation_id,
            command.command_seq,
            state=PREPARED,
            work=command.work,
            master_addr=addr,
            master_port=port,
        )
        if self._refuse_unknown_devices(command):
            return
        self.tell(
            TaskReady(
                node=self.name,
                observed_at=self._clock.now(),
                allocation_id=command.allocation_id,
                master_addr=addr,
                master_port=port,
            )
        )

    def _refuse_unknown_devices(self, command: PrepareTask | StartTask) -> bool:
        present = {device.uuid for device in self._driver.devices()}
        missing = [uuid for uuid in command.work.device_uuids if uuid not in present]
        if not missing:
            return False
        detail = f"the node has no device {', '.join(missing)}"
        self._end_without_running(command.allocation_id, Outcome.FAILED, Reason.START_FAILED, detail)
        return True

    def _record_start(self, command: StartTask, actions: list[Callable[[], object]]) -> None:
        self.journal.record_command(
            command.allocation_id,
            command.command_seq,
            state=STARTING,
            work=command.work,
            master_addr=command.master_addr,
            master_port=command.master_port,
        )
        if self._refuse_unknown_devices(command):
            return
        allocation = self.journal.allocation(command.allocation_id)
        assert allocation is not None
        actions.append(lambda: self._start(allocation))

    def _record_stop(
        self, command: StopTask, before: JournaledAllocation | None, actions: list[Callable[[], object]]
    ) -> None:
        if before is not None and before.ended_at is not None:
            self.journal.record_command(command.allocation_id, command.command_seq, state=before.state)
            return
        self.journal.record_command(command.allocation_id, command.command_seq, state=STOPPING)
        if before is None or before.state == PREPARED:
            reason = command.reason if command.reason in set(Reason) else Reason.CANCELLED
            self._end_without_running(command.allocation_id, Outcome.STOPPED, Reason(reason), None)
            return
        actions.append(lambda: self._stop(command.allocation_id, command.grace_seconds))

    def _later(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Try again in a while, unless the agent ends first: then its next start finds what is left to do."""

        async def wait_and_act() -> None:
            await self._clock.sleep(1.0)
            await action()

        assert self._group is not None
        self._group.create_task(wait_and_act())

    async def _stop(self, allocation_id: str, grace_seconds: float) -> None:
        try:
            known = await self._executor.stop(allocation_id, grace_seconds)
        except Retryable as error:
            _log.warning("the task cannot be stopped yet", allocation=allocation_id, error=str(error))
            self._later(lambda: self._stop(allocation_id, grace_seconds))
            return
        if known is None:
            _log.error("asked to stop a task that the executor does not know", allocation=allocation_id)
            with self.journal.transaction():
                self._end_without_running(allocation_id, Outcome.STOPPED, Reason.CANCELLED, None)
            self.publisher.wake()

    def _end_without_running(self, allocation_id: str, outcome: Outcome, reason: Reason, detail: str | None) -> None:
        """Nothing of it ever ran, so it has ended and its devices are empty."""
        now = self._clock.now()
        self.journal.record_end(allocation_id, outcome, now)
        self.journal.record_emptied(allocation_id)
        about = {"node": self.name, "observed_at": now, "allocation_id": allocation_id}
        self.tell(TaskExited.model_validate({**about, "outcome": outcome, "reason": reason, "detail": detail}))
        self.tell(DevicesEmptied.model_validate(about))

    async def _start(self, allocation: JournaledAllocation) -> None:
        assert allocation.work is not None
        work = allocation.work
        workdir = work.run.workdir
        if workdir is None:
            scratch = self._folder / "work" / allocation.allocation_id
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            workdir = str(scratch)
        launch = TaskLaunch(
            allocation_id=allocation.allocation_id,
            argv=tuple(work.run.command),
            env=task_environment(
                work=work,
                allocation_id=allocation.allocation_id,
                node=self.name,
                visible_devices=self._driver.visible_devices(list(work.device_uuids)),
                base=self._environment,
                master_addr=allocation.master_addr,
                master_port=allocation.master_port,
            ),
            workdir=workdir,
            output_path=str(self.output_path(allocation.allocation_id)),
        )
        try:
            await self._executor.start(launch)
        except Retryable as error:
            _log.warning("the task cannot be started yet", allocation=allocation.allocation_id, error=str(error))
            self._later(lambda: self._start(allocation))
        except Permanent as error:
            _log.error("the task cannot be started", allocation=allocation.allocation_id, error=str(error))
            with self.journal.transaction():
                self._end_without_running(
                    allocation.allocation_id, Outcome.FAILED, Reason.START_FAILED, str(error)[:500]
                )
            self.publisher.wake()

    def output_path(self, allocation_id: str) -> Path:
        """Where the task's output is. Allocation ids come from placement, never from a path that somebody sent."""
        return self._folder / "output" / allocation_id

    # --- tasks and reports -------------------------------------------------------------------------------------------

    async def _watch_tasks(self) -> None:
        """Every change of a task becomes facts in the journal; what has been told completely is forgotten."""
        async with asyncio.TaskGroup() as checks:
            await self._fold(await self._executor.statuses(), checks)
            async for batch in _batches(self._executor):
                await self._fold(batch, checks)

    async def _fold(self, batch: Sequence[TaskStatus], checks: asyncio.TaskGroup) -> None:
        done = self.facts.record(batch, self.name, checks, self.publisher)
        self.publisher.wake()
        for allocation_id in done:
            try:
                await self._executor.forget(allocation_id)
            except Retryable as error:
                # It stays known to the executor; the next start of the agent finds it told of, and forgets it then.
                _log.warning("a task is not forgotten yet", allocation=allocation_id, error=str(error))

    async def _report(self) -> None:
        """The heartbeat, with everything placement needs to find out what got lost."""
        while True:
            await self._clock.sleep(self._settings.report_seconds)
            with self.journal.transaction():
                self.publisher.strike_published()
                self._record_read()
                cutoff = self._clock.now() - timedelta(days=self._settings.keep_ended_days)
                self.journal.prune_ended(ended_before=cutoff, keep_newest=self._settings.keep_ended_newest)
                if not self.publisher.behind:
                    self.tell(self._current_report())
            self.publisher.wake()

    def _current_report(self) -> NodeReport:
        return NodeReport(
            node=self.name,
            observed_at=self._clock.now(),
            epoch=self._identity.epoch,
            allocations=[
                ReportedAllocation(
                    allocation_id=allocation.allocation_id,
                    command_seq=allocation.command_seq,
                    state="exited" if allocation.ended_at is not None else allocation.state,
                    emptied=allocation.emptied,
                )
                for allocation in self.journal.live_allocations()
            ],
        )


async def _batches(executor: Executor) -> AsyncIterator[list[TaskStatus]]:
    """Changes as they come, with whatever else has queued up meanwhile."""
    async for status in executor.changes():
        batch = [status]
        batch.extend(executor.waiting_changes())
        yield batch


def free_port(address: str) -> int:
    """A TCP port that is free at this moment on `address`."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
