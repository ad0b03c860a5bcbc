"""The agent process: its nodes, one reader of the command topic for all of them, and the HTTP for output."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import structlog
from fastapi import FastAPI

from yard_agent.log_api import build_log_api
from yard_agent.node_agent import NodeAgent
from yard_agent.settings import AgentSettings
from yard_bus.protocol import OffsetGone, PartitionRef, Record, Session
from yard_domain.errors import Retryable
from yard_events.registry import NODES_COMMANDS
from yard_runtime.host import server_for
from yard_runtime.service import Runtime

_log = structlog.get_logger("yard.agent")


class AgentService:
    """Implements `yard_runtime.service.Service`."""

    name = "agent"

    def __init__(self, settings: AgentSettings, agents: Sequence[NodeAgent], runtime: Runtime) -> None:
        self._settings = settings
        self._agents = {agent.name: agent for agent in agents}
        self._runtime = runtime

    def api(self) -> FastAPI | None:
        """None: output is served on a listener of its own, under node-scoped tokens."""
        return None

    async def run(self, ready: Callable[[], None]) -> None:
        server = server_for(build_log_api(self._agents, self._runtime.internal_token), self._settings.listen)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(), name="agent http")
            try:
                for agent in self._agents.values():
                    group.create_task(agent.run(), name=f"agent {agent.name}")
                for agent in self._agents.values():
                    await agent.registered.wait()
                ready()
                await self._read_commands()
            finally:
                server.should_exit = True
                await asyncio.wait([serving])

    async def _read_commands(self) -> None:
        """For ever; a session that ends, with the database or the connection, is begun again."""
        pause = 0.05
        while True:
            try:
                async with self._runtime.bus.session(None, [NODES_COMMANDS]) as session:
                    pause = 0.05
                    await self._serve(session)
            except* Retryable as errors:
                _log.warning("no commands for the moment", error=str(errors.exceptions[0]))
            await self._runtime.clock.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _serve(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            async for refs in session.assignments():
                for ref in sorted(refs):
                    group.create_task(self._read(session, ref), name=f"commands {ref.partition}")

    async def _read(self, session: Session, ref: PartitionRef) -> None:
        offset = self._resume_offset(ref)
        while True:
            try:
                records = await session.read(ref, offset, self._settings.command_batch)
            except OffsetGone as error:
                # What was lost is sent again: placement compares every report with its ledger.
                _log.warning("commands were lost", error=str(error))
                offset = None
                continue
            await self._dispatch(ref, records)
            offset = records[-1].offset + 1

    def _resume_offset(self, ref: PartitionRef) -> int | None:
        """The smallest of all nodes: each drops what it has seen."""
        offsets = [agent.next_offset(ref) for agent in self._agents.values()]
        known = [offset for offset in offsets if offset is not None]
        return min(known) if len(known) == len(offsets) and known else None

    async def _dispatch(self, ref: PartitionRef, records: Sequence[Record]) -> None:
        by_node: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.key in self._agents:
                by_node[record.key].append(record)
        next_offset = records[-1].offset + 1
        async with asyncio.TaskGroup() as group:
            for node, own in by_node.items():
                group.create_task(self._agents[node].obey(ref, own, next_offset))
        for agent in self._agents.values():
            agent.note_read(ref, next_offset)
