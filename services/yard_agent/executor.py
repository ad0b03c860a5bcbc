"""How the agent runs tasks: real processes under the keeper, or simulated ones (`simulated_executor`)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from yard_agent.keeper_client import KeeperClient, TaskLaunch, TaskStatus
from yard_agent.task_files import TaskFiles
from yard_domain.errors import Permanent


class Executor(Protocol):
    async def run(self) -> None:
        """Serve until cancelled; the other methods make progress only meanwhile."""
        ...

    async def start(self, launch: TaskLaunch) -> TaskStatus:
        """Run it once, however often it is called for an allocation, and answer with the status as it is.

        Without a `workdir` it works in a scratch folder of its own. Raises Permanent when it can never be started,
        Retryable.
        """
        ...

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus | None:
        """SIGTERM now, SIGKILL for the whole tree after the grace. None: nothing is known of the allocation."""
        ...

    async def statuses(self) -> list[TaskStatus]:
        """Every task that was not forgotten."""
        ...

    async def forget(self, allocation_id: str) -> None:
        """Drop a task that ended and emptied. Unknown ones are no error."""
        ...

    def changes(self) -> AsyncIterator[TaskStatus]:
        """Every change, for one reader. A status may come again and may skip steps; it never goes back."""
        ...

    def waiting_changes(self) -> list[TaskStatus]:
        """What `changes` would give at once, so that a reader can take all of it as one batch."""
        ...


class ProcessExecutor:
    """Real processes, parented by the node's keeper, so that they and their exit codes survive the agent."""

    def __init__(self, keeper: KeeperClient, files: TaskFiles) -> None:
        self._keeper = keeper
        self._files = files

    async def run(self) -> None:
        await self._keeper.run()

    async def start(self, launch: TaskLaunch) -> TaskStatus:
        try:
            launch = self._with_folders(launch)
        except OSError as error:
            raise Permanent(f"{error.filename}: {error.strerror}") from error
        return await self._keeper.start(launch)

    def _with_folders(self, launch: TaskLaunch) -> TaskLaunch:
        Path(launch.output_path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if launch.workdir is not None:
            return launch
        scratch = self._files.scratch(launch.allocation_id)
        Path(scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        return replace(launch, workdir=scratch)

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus | None:
        return await self._keeper.stop(allocation_id, grace_seconds)

    async def statuses(self) -> list[TaskStatus]:
        return await self._keeper.statuses()

    async def forget(self, allocation_id: str) -> None:
        await self._keeper.forget(allocation_id)

    def changes(self) -> AsyncIterator[TaskStatus]:
        return self._keeper.changes()

    def waiting_changes(self) -> list[TaskStatus]:
        return self._keeper.waiting_changes()
