"""From what the executor sees of a task to the facts that the node tells, each exactly once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from yard_agent.driver import GpuDriver
from yard_agent.journal import Journal
from yard_agent.journal_rows import JournaledAllocation
from yard_agent.keeper_client import TaskState, TaskStatus
from yard_agent.phases import Phase
from yard_agent.task_traces import TaskTraces
from yard_domain.errors import Permanent, Retryable
from yard_domain.reasons import Reason
from yard_domain.states import Outcome
from yard_events.base import EventModel
from yard_events.types import DevicesEmptied, TaskExited, TaskStarted
from yard_store.ports import Clock

_log = structlog.get_logger("yard.agent")

_NEVER_RAN = frozenset(
    {
        Reason.COMMAND_NOT_FOUND,
        Reason.COMMAND_NOT_EXECUTABLE,
        Reason.WORKDIR_MISSING,
        Reason.START_FAILED,
    }
)
_DETAIL_LENGTH = 500
_SLOWEST_CHECK = 10
"""Devices that do not empty are looked at ever more rarely, down to one look in so many intervals."""


class Spool(Protocol):
    def strike_published(self) -> None: ...

    def wake(self) -> None: ...


class Tell(Protocol):
    def __call__(self, event: EventModel, allocation: JournaledAllocation | None = None) -> None:
        """Queue an event, about this allocation if it is about one; inside of a transaction of the journal."""
        ...


@dataclass(slots=True)
class _HeldBack:
    """A task whose processes are gone and whose devices do not say that they are empty."""

    allocation: JournaledAllocation
    pid: int | None
    why: str


class TaskFacts:
    """Writes the facts of one node's tasks. `tell` queues an event inside of a transaction of the journal.

    `holders`, device → pids of the tasks that were given it and are not gone, is what simulated devices are held by.
    """

    def __init__(
        self,
        *,
        node: str,
        journal: Journal,
        driver: GpuDriver,
        clock: Clock,
        empty_check_seconds: float,
        max_output_bytes: int,
        spool: Spool,
        tell: Tell,
        traces: TaskTraces,
        holders: dict[str, set[int]],
    ) -> None:
        self._node = node
        self._journal = journal
        self._driver = driver
        self._clock = clock
        self._interval = empty_check_seconds
        self._max_output_bytes = max_output_bytes
        self._spool = spool
        self._tell = tell
        self._traces = traces
        self._holders = holders
        self._held_back: dict[str, _HeldBack] = {}
        self._some_held_back = asyncio.Event()
        self._followed: dict[str, asyncio.Event] = {}

    def wake(self) -> None:
        """What was told is committed."""
        self._spool.wake()

    def emptied(self, allocation_id: str) -> asyncio.Event:
        """Set once no process of the allocation is left, so that nothing writes its output any more."""
        allocation = self._journal.allocation(allocation_id)
        if allocation is None or not allocation.live or allocation_id in self._held_back:
            over = asyncio.Event()
            over.set()
            return over
        return self._followed.setdefault(allocation_id, asyncio.Event())

    def record(self, batch: Sequence[TaskStatus]) -> list[str]:
        """Fold a batch of changes into the journal in one transaction; returns what the executor may forget."""
        done: list[str] = []
        with self._journal.transaction():
            self._spool.strike_published()
            for status in batch:
                if status.emptied:
                    done.append(status.allocation_id)
                allocation = self._journal.allocation(status.allocation_id)
                if allocation is not None and allocation.live:
                    self._record(status, allocation)
        for allocation_id in done:
            self._tell_followers(allocation_id)
        self._spool.wake()
        return done

    def end_unstarted(self, allocation_id: str, outcome: Outcome, reason: Reason, detail: str | None) -> None:
        """Inside of a transaction: nothing of it ever ran, so it has ended and its devices are empty."""
        now = self._clock.now()
        self._journal.record_end(allocation_id, outcome, now)
        self._tell(
            TaskExited(
                node=self._node,
                observed_at=now,
                allocation_id=allocation_id,
                outcome=outcome,
                reason=reason,
                detail=_readable(detail),
            ),
            self._journal.allocation(allocation_id),
        )
        self._note_emptied(allocation_id)
        self._tell_followers(allocation_id)

    def _tell_followers(self, allocation_id: str) -> None:
        event = self._followed.pop(allocation_id, None)
        if event is not None:
            event.set()

    def _record(self, status: TaskStatus, allocation: JournaledAllocation) -> None:
        if allocation.allocation_id in self._held_back:
            return  # all of it is told but the last; a status from before must not bring its processes back
        self._note_holder(status, allocation)
        self._note_started(status, allocation)
        self._note_exit(status, allocation)
        if status.emptied:
            why = self._why_not_empty(allocation, status.pid)
            if why is None:
                self._note_emptied(allocation.allocation_id)
            else:
                self._hold_back(allocation, status.pid, why)

    def _note_holder(self, status: TaskStatus, allocation: JournaledAllocation) -> None:
        if allocation.work is not None and status.pid is not None and not status.emptied:
            for uuid in allocation.work.device_uuids:
                self._holders.setdefault(uuid, set()).add(status.pid)

    def _note_started(self, status: TaskStatus, allocation: JournaledAllocation) -> None:
        ran = status.state is TaskState.RUNNING or (
            status.state is TaskState.EXITED and status.reason not in _NEVER_RAN
        )
        if not ran or allocation.ended_at is not None or allocation.state in (Phase.RUNNING, Phase.STOPPING):
            return
        now = self._clock.now()
        self._journal.record_started(allocation.allocation_id, Phase.RUNNING, now, self._traces.of(allocation))
        self._tell(
            TaskStarted(node=self._node, observed_at=now, allocation_id=allocation.allocation_id, pid=status.pid),
            allocation,
        )

    def _note_exit(self, status: TaskStatus, allocation: JournaledAllocation) -> None:
        if status.state is not TaskState.EXITED or allocation.ended_at is not None:
            return
        outcome = Outcome.SUCCEEDED if status.exit_code == 0 else Outcome.FAILED
        reason, detail = status.reason or Reason.START_FAILED, status.detail
        if allocation.stop_reason == Reason.OUTPUT_LIMIT:
            outcome, reason = Outcome.FAILED, Reason.OUTPUT_LIMIT
            detail = f"it printed more than {self._max_output_bytes} bytes"
        elif allocation.state == Phase.STOPPING:
            outcome = Outcome.STOPPED
        now = self._clock.now()
        self._journal.record_end(allocation.allocation_id, outcome, now)
        self._tell(
            TaskExited(
                node=self._node,
                observed_at=now,
                allocation_id=allocation.allocation_id,
                outcome=outcome,
                reason=reason,
                exit_code=status.exit_code,
                signal=status.signal,
                detail=_readable(detail),
            ),
            allocation,
        )
        self._traces.ran(self._journal.allocation(allocation.allocation_id) or allocation, now, outcome, reason)

    def _note_emptied(self, allocation_id: str) -> None:
        self._journal.record_emptied(allocation_id)
        self._tell(
            DevicesEmptied(node=self._node, observed_at=self._clock.now(), allocation_id=allocation_id),
            self._journal.allocation(allocation_id),
        )
        self._traces.forget(allocation_id)

    # --- seen empty before released ----------------------------------------------------------------------------------

    def _why_not_empty(self, allocation: JournaledAllocation, pid: int | None) -> str | None:
        """The keeper saw the whole tree gone; the devices must agree. What cannot be read is not empty."""
        if allocation.work is None:
            return None
        for uuid in allocation.work.device_uuids:
            holders = self._holders.get(uuid)
            if holders is not None and pid is not None:
                holders.discard(pid)
            try:
                processes = self._driver.processes(uuid)
            except (Retryable, Permanent) as error:
                return str(error)
            if processes:
                return f"{uuid}: held by process {', '.join(str(process.pid) for process in processes)}"
        return None

    def _hold_back(self, allocation: JournaledAllocation, pid: int | None, why: str) -> None:
        _log.warning("devices are not empty", node=self._node, allocation=allocation.allocation_id, why=why)
        self._held_back[allocation.allocation_id] = _HeldBack(allocation, pid, why)
        self._some_held_back.set()

    async def watch_devices(self) -> None:
        """Look again at devices that were not empty: until they are they stay booked, which keeps them out of use."""
        looks = 1
        while True:
            if not self._held_back:
                self._some_held_back.clear()
                await self._some_held_back.wait()
                looks = 1
            await self._clock.sleep(self._interval * min(looks, _SLOWEST_CHECK))
            looks += 1
            empty = [allocation_id for allocation_id, held in self._held_back.items() if self._is_empty(held)]
            if not empty:
                continue
            looks = 1
            with self._journal.transaction():
                for allocation_id in empty:
                    self._note_emptied(allocation_id)
            for allocation_id in empty:
                del self._held_back[allocation_id]
            self._spool.wake()

    def _is_empty(self, held: _HeldBack) -> bool:
        why = self._why_not_empty(held.allocation, held.pid)
        if why is not None and why != held.why:
            allocation_id = held.allocation.allocation_id
            _log.warning("devices are still not empty", node=self._node, allocation=allocation_id, why=why)
            held.why = why
        return why is None


def _readable(detail: str | None) -> str | None:
    """The keeper's words are bytes of paths, perhaps cut in the middle of a letter: an event takes only valid text."""
    return detail.encode(errors="replace").decode()[:_DETAIL_LENGTH] if detail is not None else None
