"""Starting and stopping: the executor is brought to where the journal says each task should be.

What is done depends on nothing but the journal, so a retry, a new keeper and a new agent all go on in the same way.
"""

import asyncio
from collections.abc import Iterable, Mapping

import structlog

from yard_agent.driver import GpuDriver
from yard_agent.environment import task_environment
from yard_agent.executor import Executor
from yard_agent.journal import Journal
from yard_agent.journal_rows import JournaledAllocation
from yard_agent.keeper_client import TaskLaunch, TaskState, TaskStatus
from yard_agent.phases import Phase
from yard_agent.task_facts import TaskFacts
from yard_agent.task_files import TaskFiles
from yard_agent.task_traces import TaskTraces
from yard_domain.errors import Permanent, Retryable
from yard_domain.reasons import Reason
from yard_domain.states import Outcome
from yard_store.ports import Clock

_log = structlog.get_logger("yard.agent")

RETRY_SECONDS = 0.5


class TaskControl:
    def __init__(
        self,
        *,
        node: str,
        journal: Journal,
        driver: GpuDriver,
        executor: Executor,
        files: TaskFiles,
        facts: TaskFacts,
        traces: TaskTraces,
        clock: Clock,
        environment: Mapping[str, str],
    ) -> None:
        self._node = node
        self._journal = journal
        self._driver = driver
        self._executor = executor
        self._files = files
        self._facts = facts
        self._traces = traces
        self._clock = clock
        self._environment = environment
        self._due: dict[str, None] = {}
        self._some_due = asyncio.Event()

    def want(self, allocation_ids: Iterable[str]) -> None:
        """The journal says something new about these."""
        self._due.update(dict.fromkeys(allocation_ids))
        if self._due:
            self._some_due.set()

    async def run(self) -> None:
        """Rounds without end; within one, tasks are started and stopped together, as the keeper logs them together."""
        while True:
            await self._some_due.wait()
            self._some_due.clear()
            due, self._due = list(self._due), {}
            again = await self._act_on(due)
            if again:
                await self._clock.sleep(RETRY_SECONDS)
                self.want(again)

    async def _act_on(self, allocation_ids: list[str]) -> list[str]:
        """Returns those that must be tried again."""
        if len(allocation_ids) == 1:
            return [] if await self._act(allocation_ids[0]) else allocation_ids
        async with asyncio.TaskGroup() as group:
            tasks = [(each, group.create_task(self._act(each))) for each in allocation_ids]
        return [each for each, task in tasks if not task.result()]

    async def _act(self, allocation_id: str) -> bool:
        """False: not now."""
        allocation = self._journal.allocation(allocation_id)
        if allocation is None or allocation.ended_at is not None:
            return True
        try:
            if allocation.state == Phase.STARTING:
                await self._start(allocation)
            elif allocation.state == Phase.STOPPING:
                await self._stop(allocation)
        except Retryable as error:
            _log.warning(
                "a task cannot be started or stopped yet", node=self._node, allocation=allocation_id, error=str(error)
            )
            return False
        return True

    async def _start(self, allocation: JournaledAllocation) -> None:
        try:
            with self._traces.starting(allocation) as trace:
                await self._executor.start(self._launch(allocation, trace))
        except Permanent as error:
            self._cannot_start(allocation.allocation_id, str(error))

    async def _stop(self, allocation: JournaledAllocation) -> None:
        """Asking again never gives a task more time, so the whole grace is right after a restart too."""
        allocation_id = allocation.allocation_id
        if await self._executor.stop(allocation_id, allocation.stop_grace_seconds or 0.0) is None:
            # Never handed over, or the executor has lost its memory: then the devices have the last word.
            reason = allocation.stop_reason or Reason.CANCELLED
            gone = TaskStatus(allocation_id, TaskState.EXITED, reason=reason, emptied=True)
            self._facts.record([gone])

    def _cannot_start(self, allocation_id: str, detail: str) -> None:
        _log.error("a task cannot be started", node=self._node, allocation=allocation_id, error=detail)
        allocation = self._journal.allocation(allocation_id)
        if allocation is not None and allocation.ended_at is None:
            with self._journal.transaction():
                self._facts.end_unstarted(allocation_id, Outcome.FAILED, Reason.START_FAILED, detail)
            self._facts.wake()

    def _launch(self, allocation: JournaledAllocation, trace: Mapping[str, str]) -> TaskLaunch:
        """Raises UnknownDevice when a device has left the node since the command came."""
        work = allocation.work
        if work is None:
            raise Permanent("the journal does not hold what to run")
        return TaskLaunch(
            allocation_id=allocation.allocation_id,
            argv=tuple(work.run.command),
            env=task_environment(
                work=work,
                allocation_id=allocation.allocation_id,
                node=self._node,
                visible_devices=self._driver.visible_devices(list(work.device_uuids)),
                base=self._environment,
                master_addr=allocation.master_addr,
                master_port=allocation.master_port,
                trace=trace,
            ),
            workdir=work.run.workdir,
            output_path=self._files.output(allocation.allocation_id),
        )
