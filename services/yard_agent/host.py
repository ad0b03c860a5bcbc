"""The agent process: its nodes, one reader of the command topic for all of them, and the HTTP for output."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import structlog
from fastapi import FastAPI

from yard_agent.log_api import build_log_api
from yard_agent.node_agent import NodeAgent
from yard_agent.settings import AgentSettings
from yard_bus.protocol import OffsetGone, PartitionRef, Record, Session
from yard_domain.errors import Retryable
from yard_events.partitioner import partition_for
from yard_events.registry import NODES_COMMANDS
from yard_runtime.contained import contained
from yard_runtime.host import server_for
from yard_runtime.service import Runtime, causes

_log = structlog.get_logger("yard.agent")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0


class AgentService:
    """Implements `yard_runtime.service.Service` and `ReportsProblems`."""

    name = "agent"

    def __init__(self, settings: AgentSettings, agents: Sequence[NodeAgent], runtime: Runtime) -> None:
        self._settings = settings
        self._agents = {agent.name: agent for agent in agents}
        self._runtime = runtime
        self._no_commands: str | None = "commands are not read yet"

    def api(self) -> FastAPI | None:
        """None: output is served on a listener of its own, under node-scoped tokens."""
        return None

    def problems(self) -> Sequence[str]:
        """Why nodes do not do what they are told, or do not tell what they do."""
        found = [self._no_commands] if self._no_commands is not None else []
        for agent in self._agents.values():
            if not agent.registered.is_set():
                found.append(f"{agent.name}: its executor does not answer")
            elif agent.publisher.away is not None:
                found.append(f"{agent.name}: events wait: {agent.publisher.away}")
        return found

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve all nodes. The first that fails ends all, with its name: a node that is silently dead is worse."""
        # Readers of output come again; an agent that stops does not wait for their tasks to end.
        api = build_log_api(self._agents, self._runtime.internal_token)
        server = server_for(api, self._settings.listen, graceful_seconds=1)
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve(), name="agent http")
                try:
                    for agent in self._agents.values():
                        group.create_task(self._run(agent), name=f"agent {agent.name}")
                    for agent in self._agents.values():
                        await agent.registered.wait()
                    ready()
                    await self._read_commands()
                finally:
                    server.should_exit = True
                    await asyncio.wait([serving])
        finally:
            for agent in self._agents.values():
                agent.close()

    async def _run(self, agent: NodeAgent) -> None:
        with _naming(agent):
            await agent.run()

    async def _read_commands(self) -> None:
        """For ever; a session that ends, with the database or the connection, is begun again."""
        pause = _FIRST_PAUSE_SECONDS
        clock = self._runtime.clock
        while True:
            since = clock.now()
            try:
                await contained(self._read_one_session())
            except* Retryable as errors:
                self._no_commands = f"commands are not read: {'; '.join(causes(errors))}"
                _log.warning("no commands for the moment", errors=causes(errors))
            if (clock.now() - since).total_seconds() > 2 * _LONGEST_PAUSE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS  # it was well in between; this is another outage
            await clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _read_one_session(self) -> None:
        async with self._runtime.bus.session(None, [NODES_COMMANDS]) as session:
            self._no_commands = None
            await self._serve(session)

    async def _serve(self, session: Session) -> None:
        """One reader for each partition that nodes of this process hash to."""
        async with asyncio.TaskGroup() as group:
            async for refs in session.assignments():
                for ref in sorted(refs):
                    agents = [a for a in self._agents.values() if partition_for(a.name, len(refs)) == ref.partition]
                    if agents:
                        group.create_task(self._read(session, ref, agents), name=f"commands {ref.partition}")

    async def _read(self, session: Session, ref: PartitionRef, agents: Sequence[NodeAgent]) -> None:
        offset = _resume_offset(ref, agents)
        while True:
            try:
                records = await session.read(ref, offset, self._settings.command_batch)
            except OffsetGone as error:
                _log.warning("commands were lost", partition=ref.partition, error=str(error))
                for agent in agents:
                    agent.read_again(ref)
                offset = None
                continue
            _dispatch(ref, records, agents)
            offset = records[-1].offset + 1


def _resume_offset(ref: PartitionRef, agents: Sequence[NodeAgent]) -> int | None:
    """The smallest of all nodes: each drops what it has seen."""
    offsets = [agent.next_offset(ref) for agent in agents]
    known = [offset for offset in offsets if offset is not None]
    return min(known) if len(known) == len(offsets) else None


def _dispatch(ref: PartitionRef, records: Sequence[Record], agents: Sequence[NodeAgent]) -> None:
    by_node: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_node[record.key].append(record)
    next_offset = records[-1].offset + 1
    for agent in agents:
        with _naming(agent):
            if agent.name in by_node:
                agent.obey(ref, by_node[agent.name], next_offset)
            else:
                agent.note_read(ref, next_offset)


@contextmanager
def _naming(agent: NodeAgent) -> Generator[None, None, None]:
    """An error that ends the process says whose it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"node {agent.name}")
        raise
