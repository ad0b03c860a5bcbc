"""Every test gets a keeper or nodes of its own, and fails if a process of its tasks is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.agent_node import AgentNodes
from support.keeper_node import Connection, Node, until
from support.processes import alive, kill_all
from yard_runtime.service import Runtime


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    left = node.processes()
    kill_all(left)
    # Whoever serves the node now, also one that was being started when the test ended: there is only one.
    async with node.connected() as connection:
        keeper = connection.client.keeper_pid
    assert keeper is not None
    os.kill(keeper, signal.SIGTERM)
    await until(lambda: not alive(keeper))
    assert left == set(), "processes of tasks were left behind"


@pytest.fixture
async def agent(node: Node) -> AsyncIterator[Connection]:
    async with node.connected() as connection:
        yield connection


@pytest.fixture
async def nodes(runtime: Runtime, database: str, tmp_path: Path) -> AsyncIterator[AgentNodes]:
    """One node, `n1`; nobody serves it yet."""
    nodes = AgentNodes(runtime, tmp_path, database)
    listening = asyncio.create_task(nodes.listen())
    yield nodes
    failed = listening.exception() if listening.done() else None
    listening.cancel()
    await asyncio.wait([listening])
    left = nodes.processes()
    await asyncio.to_thread(nodes.end_keepers)
    if failed is not None:
        raise failed
    assert left == set(), "processes of tasks were left behind"
