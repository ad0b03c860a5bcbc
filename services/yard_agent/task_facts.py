"""From what the executor sees of a task to the facts that the node tells, each exactly once."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from yard_agent.driver import GpuDriver
from yard_agent.journal import Journal, JournaledAllocation
from yard_agent.keeper_client import TaskState, TaskStatus
from yard_domain.errors import Permanent, Retryable
from yard_domain.reasons import Reason
from yard_domain.states import Outcome
from yard_events.base import EventModel
from yard_events.types import DevicesEmptied, TaskExited, TaskStarted
from yard_store.ports import Clock

_log = structlog.get_logger("yard.agent")

RUNNING = "running"
STOPPING = "stopping"

_NEVER_RAN = frozenset(
    {
        Reason.COMMAND_NOT_FOUND,
        Reason.COMMAND_NOT_EXECUTABLE,
        Reason.WORKDIR_MISSING,
        Reason.START_FAILED,
    }
)


class Spool(Protocol):
    def strike_published(self) -> None: ...

    def wake(self) -> None: ...


class TaskFacts:
    """Writes the facts of one node's tasks. `tell` queues an event inside of a transaction of the journal."""

    def __init__(
        self,
        journal: Journal,
        driver: GpuDriver,
        clock: Clock,
        empty_check_seconds: float,
        tell: Callable[[EventModel], None],
    ) -> None:
        self._journal = journal
        self._driver = driver
        self._clock = clock
        self._interval = empty_check_seconds
        self._tell = tell
        self._checking: set[str] = set()
        self._emptied: dict[str, asyncio.Event] = {}
        self.pids: dict[str, set[int]] = {}
        """Device → pids of the tasks that were given it and have not emptied: what simulated devices are held by."""

    def emptied(self, allocation_id: str) -> asyncio.Event:
        """Set once nothing of the allocation writes any more, which is also so for one that is not known."""
        event = self._emptied.setdefault(allocation_id, asyncio.Event())
        allocation = self._journal.allocation(allocation_id)
        if allocation is None or (allocation.ended_at is not None and allocation.emptied):
            event.set()
        return event

    def record(self, batch: Sequence[TaskStatus], node: str, checks: asyncio.TaskGroup, spool: Spool) -> list[str]:
        """Fold a batch of changes into the journal in one transaction; returns what the executor may forget."""
        done: list[str] = []
        with self._journal.transaction():
            spool.strike_published()
            for status in batch:
                allocation = self._journal.allocation(status.allocation_id)
                if allocation is None:
                    continue
                self._note_running(status, allocation, node)
                self._note_exit(status, allocation, node)
                if status.emptied and not allocation.emptied:
                    if self._holds_nothing(allocation, status):
                        self._note_emptied(allocation.allocation_id, node)
                    elif allocation.allocation_id not in self._checking:
                        self._checking.add(allocation.allocation_id)
                        checks.create_task(self._until_empty(status, node, spool))
                if status.emptied:
                    done.append(status.allocation_id)
        for allocation_id in done:
            self._settle(allocation_id)
        return done

    def _settle(self, allocation_id: str) -> None:
        """After the commit: whoever follows the output may stop waiting."""
        event = self._emptied.pop(allocation_id, None)
        if event is not None:
            event.set()

    def _note_running(self, status: TaskStatus, allocation: JournaledAllocation, node: str) -> None:
        ran = status.state is TaskState.RUNNING or (
            status.state is TaskState.EXITED and status.reason not in _NEVER_RAN
        )
        if allocation.work is not None and status.pid is not None and not status.emptied:
            for uuid in allocation.work.device_uuids:
                self.pids.setdefault(uuid, set()).add(status.pid)
        if not ran or allocation.ended_at is not None or allocation.state in (RUNNING, STOPPING):
            return
        self._journal.set_state(allocation.allocation_id, RUNNING)
        self._tell(
            TaskStarted(
                node=node, observed_at=self._clock.now(), allocation_id=allocation.allocation_id, pid=status.pid
            )
        )

    def _note_exit(self, status: TaskStatus, allocation: JournaledAllocation, node: str) -> None:
        if status.state is not TaskState.EXITED or allocation.ended_at is not None:
            return
        current = self._journal.allocation(allocation.allocation_id)
        asked_to_stop = current is not None and current.state == STOPPING
        ended = Outcome.SUCCEEDED if status.exit_code == 0 else Outcome.FAILED
        outcome = Outcome.STOPPED if asked_to_stop else ended
        now = self._clock.now()
        self._journal.record_end(allocation.allocation_id, outcome, now)
        self._tell(
            TaskExited(
                node=node,
                observed_at=now,
                allocation_id=allocation.allocation_id,
                outcome=outcome,
                reason=status.reason or Reason.START_FAILED,
                exit_code=status.exit_code,
                signal=status.signal,
                detail=status.detail,
            )
        )

    def _note_emptied(self, allocation_id: str, node: str) -> None:
        self._journal.record_emptied(allocation_id)
        self._tell(DevicesEmptied(node=node, observed_at=self._clock.now(), allocation_id=allocation_id))

    # --- seen empty before released ----------------------------------------------------------------------------------

    def _holds_nothing(self, allocation: JournaledAllocation, status: TaskStatus) -> bool:
        """The keeper saw the whole tree gone; the devices must agree. What cannot be read is not empty."""
        if allocation.work is None:
            return True
        if status.pid is not None:
            for uuid in allocation.work.device_uuids:
                self.pids.get(uuid, set()).discard(status.pid)
        try:
            return not any(self._driver.processes(uuid) for uuid in allocation.work.device_uuids)
        except (Retryable, Permanent) as error:
            _log.warning("a device does not say whether it is empty", node=allocation.allocation_id, error=str(error))
            return False

    async def _until_empty(self, status: TaskStatus, node: str, spool: Spool) -> None:
        """Ask again until the devices are empty: until then they stay booked, which keeps them out of the pool."""
        allocation_id = status.allocation_id
        _log.warning("devices are not empty after their task ended", node=node, allocation=allocation_id)
        while True:
            await self._clock.sleep(self._interval)
            allocation = self._journal.allocation(allocation_id)
            if allocation is None or allocation.emptied:
                return
            if self._holds_nothing(allocation, status):
                break
        with self._journal.transaction():
            self._note_emptied(allocation_id, node)
        self._checking.discard(allocation_id)
        spool.wake()
