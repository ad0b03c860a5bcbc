"""A node of a test's own: a keeper that the test's client starts, and what its client was told."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from support.processes import processes_with
from yard_agent.keeper_client import KeeperClient, TaskLaunch, TaskState, TaskStatus

WITHIN_SECONDS = 20


class Node:
    """`mark` is in the environment of every process of the node's tasks, for as long as they keep it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"YARD_TEST_NODE={secrets.token_hex(8)}"
        self.lost: list[str] = []

    @property
    def log_path(self) -> Path:
        return self.folder / "keeper.log"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Connection"]:
        """An agent's connection; leaving it is an agent's sudden death as far as the keeper can tell."""
        client = KeeperClient(
            socket_path=self.folder / "keeper.sock",
            log_path=self.log_path,
            stderr_path=self.folder / "keeper.err",
            on_lost=self.lost.append,
            sweep_grace_seconds=0.3,
        )
        running = asyncio.create_task(client.run())
        connection = Connection(self, client)
        following = asyncio.create_task(connection.follow())
        try:
            await asyncio.wait_for(client.statuses(), WITHIN_SECONDS)
            assert client.keeper_pid is not None
            yield connection
        finally:
            for task in (running, following):
                task.cancel()
            results = await asyncio.gather(running, following, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results), results

    def launch(
        self, *argv: str, id: str = "", env: dict[str, str] | None = None, workdir: str | None = None
    ) -> TaskLaunch:
        allocation_id = id or f"alloc-{secrets.token_hex(6)}"
        name, value = self.mark.split("=")
        return TaskLaunch(
            allocation_id=allocation_id,
            argv=argv,
            env={"PATH": os.environ["PATH"], name: value, "YARD_ALLOCATION_ID": allocation_id} | (env or {}),
            workdir=workdir,
            output_path=str(self.folder / f"{allocation_id}.out"),
        )

    def python(self, code: str, id: str = "") -> TaskLaunch:
        return self.launch(sys.executable, "-I", "-S", "-c", code, id=id)

    def output(self, launch: TaskLaunch) -> bytes:
        return Path(launch.output_path).read_bytes()

    def processes(self) -> set[int]:
        return processes_with(self.mark)


class Connection:
    """The client, and the last status of every task as its changes told."""

    def __init__(self, node: Node, client: KeeperClient) -> None:
        self.node = node
        self.client = client
        self.seen: dict[str, list[TaskStatus]] = {}
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        async for status in self.client.changes():
            async with self._changed:
                self.seen.setdefault(status.allocation_id, []).append(status)
                self._changed.notify_all()

    async def until(self, allocation_id: str, condition: Callable[[TaskStatus], bool]) -> TaskStatus:
        def reached() -> TaskStatus | None:
            return next((status for status in self.seen.get(allocation_id, ()) if condition(status)), None)

        async with asyncio.timeout(WITHIN_SECONDS), self._changed:
            await self._changed.wait_for(reached)
        status = reached()
        assert status is not None
        return status

    async def running(self, allocation_id: str) -> TaskStatus:
        return await self.until(allocation_id, lambda status: status.state is TaskState.RUNNING)

    async def exited(self, allocation_id: str) -> TaskStatus:
        return await self.until(allocation_id, lambda status: status.state is TaskState.EXITED)

    async def emptied(self, allocation_id: str) -> TaskStatus:
        return await self.until(allocation_id, lambda status: status.emptied)

    async def run(self, launch: TaskLaunch) -> TaskStatus:
        await self.client.start(launch)
        return await self.emptied(launch.allocation_id)


async def until(condition: Callable[[], bool]) -> None:
    """For what no event tells, such as the death of a process that is not ours."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)
