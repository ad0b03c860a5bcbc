"""Every test gets a keeper of its own, and fails if a process of its tasks is left."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.keeper_node import Connection, Node, until
from support.processes import alive, kill_all


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
