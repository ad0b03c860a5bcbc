"""One node's agent: commands in, tasks run, facts out. Everything it must not forget is in its journal first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import structlog

from yard_agent.commands import Commands
from yard_agent.driver import GpuDriver
from yard_agent.executor import Executor
from yard_agent.journal import Journal, Position
from yard_agent.journal_rows import JournaledAllocation
from yard_agent.keeper_client import TaskState, TaskStatus
from yard_agent.phases import Phase
from yard_agent.publisher import Publisher
from yard_agent.registration import NodeIdentity
from yard_agent.settings import AgentSettings
from yard_agent.task_control import TaskControl
from yard_agent.task_facts import TaskFacts
from yard_agent.task_files import TaskFiles
from yard_agent.task_traces import TaskTraces
from yard_bus.protocol import Bus, PartitionRef, Record
from yard_domain.errors import Retryable
from yard_domain.reasons import Reason
from yard_events.base import EventModel
from yard_events.types import NodeReport, ReportedAllocation
from yard_store.ports import Clock, Ids

_log = structlog.get_logger("yard.agent")

_RETRY_SECONDS = 0.5
_OUTPUT_LIMIT_GRACE_SECONDS = 5.0
_PRUNE_BATCH = 1000

T = TypeVar("T")


class NodeAgent:
    """Built once per node and process; `run` serves until cancelled, `close` lets go of the journal and the driver."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        identity: NodeIdentity,
        folder: Path,
        journal: Journal,
        driver: GpuDriver,
        executor: Executor,
        bus: Bus,
        clock: Clock,
        ids: Ids,
        environment: Mapping[str, str],
        holders: dict[str, set[int]],
    ) -> None:
        self.name = identity.node.name
        self.registered = asyncio.Event()
        self.journal = journal
        self.files = TaskFiles(folder)
        self._settings = settings
        self._identity = identity
        self._driver = driver
        self._executor = executor
        self._clock = clock
        self._ids = ids
        self._source = f"yard/agent/{self.name}/{journal.journal_id}"
        self._traces = TaskTraces(self.name)
        self.publisher = Publisher(journal, bus, clock, self.name, settings.publish_batch)
        self.facts = TaskFacts(
            node=self.name,
            journal=journal,
            driver=driver,
            clock=clock,
            empty_check_seconds=settings.empty_check_seconds,
            max_output_bytes=settings.max_output_bytes,
            spool=self.publisher,
            tell=self.tell,
            traces=self._traces,
            holders=holders,
        )
        self._commands = Commands(
            node=self.name,
            epoch=identity.epoch,
            advertise_addr=settings.advertise_addr,
            journal=journal,
            driver=driver,
            facts=self.facts,
            clock=clock,
            tell=self.tell,
        )
        self._control = TaskControl(
            node=self.name,
            journal=journal,
            driver=driver,
            executor=executor,
            files=self.files,
            facts=self.facts,
            traces=self._traces,
            clock=clock,
            environment=environment,
        )
        self._read_up_to: dict[PartitionRef, int] = {}

    def tell(self, event: EventModel, allocation: JournaledAllocation | None = None) -> None:
        """Queue an event; inside of a transaction of the journal. What is about an allocation continues its trace."""
        event_id = self._ids.new("evt")
        self.journal.spool(
            event,
            event_id=event_id,
            source=self._source,
            time=self._clock.now(),
            correlation_id=allocation.correlation_id if allocation is not None else None,
            extra=self._traces.told(event, event_id, allocation) if allocation is not None else None,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._executor.run(), name=f"{self.name} executor")
            unknown = await self._resume()
            self._register()
            group.create_task(self.publisher.run(), name=f"{self.name} publisher")
            group.create_task(self._control.run(), name=f"{self.name} control")
            group.create_task(self._watch_tasks(unknown), name=f"{self.name} tasks")
            group.create_task(self.facts.watch_devices(), name=f"{self.name} devices")
            group.create_task(self._report(), name=f"{self.name} report")
            group.create_task(self._keep_house(), name=f"{self.name} housekeeping")
            self.registered.set()

    def close(self) -> None:
        self.journal.close()
        self._driver.close()

    # --- coming back -------------------------------------------------------------------------------------------------

    async def _resume(self) -> list[TaskStatus]:
        """Bring journal and executor together after whatever ended the last run of this agent.

        Returns the ends of tasks that ran and that the executor knows nothing of any more.
        """
        self._close_what_a_reboot_ended()
        known = {allocation.allocation_id for allocation in self.journal.live_allocations()}
        statuses = {status.allocation_id: status for status in await self._patiently(self._executor.statuses)}
        strays = set(statuses) - known
        if strays:
            await self._end_strays(strays)
        lost: list[TaskStatus] = []
        for allocation in self.journal.live_allocations():
            unfinished = allocation.ended_at is None
            if unfinished and allocation.state in (Phase.STARTING, Phase.STOPPING):
                self._control.want([allocation.allocation_id])
            elif allocation.allocation_id not in statuses and allocation.state != Phase.PREPARED:
                # Told of as running, or as ended and not emptied: the devices have the last word.
                lost.append(
                    TaskStatus(allocation.allocation_id, TaskState.EXITED, reason=Reason.KEEPER_LOST, emptied=True)
                )
        return lost

    def _close_what_a_reboot_ended(self) -> None:
        rebooted = self.journal.remembered("boot_id") not in (None, self._identity.boot_id)
        with self.journal.transaction():
            self.journal.remember("boot_id", self._identity.boot_id)
            if rebooted:
                # A new epoch: placement closes what the old one had, so nothing of it is told.
                for allocation in self.journal.live_allocations():
                    self.journal.record_end(allocation.allocation_id, Reason.NODE_REBOOTED, self._clock.now())
                    self.journal.record_emptied(allocation.allocation_id)

    async def _end_strays(self, strays: set[str]) -> None:
        """Tasks of a journal that is gone, and tasks told of completely before the executor forgot them. This agent's
        epoch is announced only when nothing of them is left."""
        if not await self._patiently(lambda: self._are_gone(strays)):
            _log.warning("ending tasks that the journal does not know", node=self.name, allocations=sorted(strays))
            async for _change in self._executor.changes():
                if await self._patiently(lambda: self._are_gone(strays)):
                    break
        for allocation_id in sorted(strays):
            await self._patiently(lambda stray=allocation_id: self._executor.forget(stray))  # type: ignore[misc]

    async def _are_gone(self, strays: set[str]) -> bool:
        left = [
            status.allocation_id
            for status in await self._executor.statuses()
            if status.allocation_id in strays and not status.emptied
        ]
        for allocation_id in left:
            await self._executor.stop(allocation_id, 0.0)
        return not left

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The executor's answer, for as long as it takes."""
        while True:
            try:
                return await call()
            except Retryable as error:
                _log.warning("the executor is not ready", node=self.name, error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)

    def _register(self) -> None:
        with self.journal.transaction():
            self.tell(self._identity.registration(self._driver, self._clock.now()))
        self.publisher.wake()

    # --- commands ----------------------------------------------------------------------------------------------------

    def next_offset(self, ref: PartitionRef) -> int | None:
        """Where this node's reading of commands goes on; None for the oldest there is."""
        position = self.journal.position(ref.topic, ref.partition)
        return position.next_offset if position is not None and position.incarnation == ref.incarnation else None

    def obey(self, ref: PartitionRef, records: Sequence[Record], next_offset: int) -> None:
        """Record a batch of this node's commands with the position behind them; what follows from them is then done."""
        seen_up_to = self.next_offset(ref) or 0
        if next_offset <= seen_up_to:
            return
        with self.journal.transaction():
            due = self._commands.record([record for record in records if record.offset >= seen_up_to])
            self.journal.advance(ref.topic, ref.partition, Position(ref.incarnation, next_offset))
            self.publisher.strike_published()
        self.publisher.wake()
        self._control.want(due)

    def note_read(self, ref: PartitionRef, next_offset: int) -> None:
        """Everything of this node up to here was obeyed; the journal learns it with the next report."""
        self._read_up_to[ref] = next_offset

    def read_again(self, ref: PartitionRef) -> None:
        """The log does not hold this node's position: it lost records, or was put back to an earlier state.

        All there is is read again, doubles are known by their sequence. What was lost is sent again: placement compares
        every report with its ledger; a log that lost this node's registration gets it anew.
        """
        self._read_up_to.pop(ref, None)
        with self.journal.transaction():
            self.journal.forget_position(ref.topic, ref.partition)
        self._register()

    def _record_read(self) -> None:
        for ref, next_offset in self._read_up_to.items():
            if next_offset > (self.next_offset(ref) or 0):
                self.journal.advance(ref.topic, ref.partition, Position(ref.incarnation, next_offset))
        self._read_up_to.clear()

    # --- tasks and reports -------------------------------------------------------------------------------------------

    async def _watch_tasks(self, unknown: Sequence[TaskStatus]) -> None:
        """Every change of a task becomes facts in the journal; what has been told completely is forgotten."""
        await self._fold([*unknown, *await self._patiently(self._executor.statuses)])
        async for batch in _batches(self._executor):
            await self._fold(batch)

    async def _fold(self, batch: Sequence[TaskStatus]) -> None:
        if not batch:
            return
        for allocation_id in self.facts.record(batch):
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
                talkative = self._stop_talkative()
                if self.publisher.away is None:
                    self.tell(self._current_report())
            self.publisher.wake()
            self._control.want(talkative)

    def _stop_talkative(self) -> list[str]:
        """Tasks that printed more than they may: one of them must not fill the node's disk."""
        found = [
            allocation.allocation_id
            for allocation in self.journal.live_allocations()
            if allocation.ended_at is None
            and allocation.state != Phase.PREPARED
            and allocation.stop_reason != Reason.OUTPUT_LIMIT
            and self.files.output_bytes(allocation.allocation_id) > self._settings.max_output_bytes
        ]
        for allocation_id in found:
            _log.warning("a task printed too much and is stopped", node=self.name, allocation=allocation_id)
            self.journal.record_stop(allocation_id, Phase.STOPPING, Reason.OUTPUT_LIMIT, _OUTPUT_LIMIT_GRACE_SECONDS)
        return found

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

    # --- housekeeping ------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """Old tasks go, with their output and scratch folders; once, also what an earlier journal left."""
        known = {allocation.allocation_id for allocation in self.journal.allocations()}
        cutoff = self._clock.now() - timedelta(days=self._settings.keep_ended_days)
        await self._remove_files(await asyncio.to_thread(self.files.leftovers, known, cutoff.timestamp()))
        while True:
            await self._prune()
            await self._clock.sleep(self._settings.housekeeping_seconds)

    async def _prune(self) -> None:
        cutoff = self._clock.now() - timedelta(days=self._settings.keep_ended_days)
        newest = self._settings.keep_ended_newest
        while old := self.journal.prunable(ended_before=cutoff, keep_newest=newest, limit=_PRUNE_BATCH):
            # Files first: after a crash in between the journal still knows whose they are.
            await self._remove_files(old)
            with self.journal.transaction():
                self.journal.forget(old)

    async def _remove_files(self, allocation_ids: Sequence[str]) -> None:
        for failure in await asyncio.to_thread(self.files.remove, allocation_ids):
            _log.warning("files of an old task cannot be removed", node=self.name, error=failure)


async def _batches(executor: Executor) -> AsyncIterator[list[TaskStatus]]:
    """Changes as they come, with whatever else has queued up meanwhile."""
    async for status in executor.changes():
        batch = [status]
        batch.extend(executor.waiting_changes())
        yield batch
