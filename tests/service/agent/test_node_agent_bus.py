"""The bus as nodes know it: away, with records lost, put back to an earlier state; several nodes at once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from support.agent_node import AgentNodes, until
from yard_agent.journal import Journal, Position
from yard_bus.postgres import PostgresBus
from yard_events.registry import NODES_COMMANDS
from yard_events.types import NodeRegistered, NodeReport
from yard_runtime.service import Runtime


@asynccontextmanager
async def database_away(server: str, database: str) -> AsyncIterator[None]:
    """No connection of anybody, old or new, until the block ends."""
    name = database.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(server)
    try:
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        try:
            yield
        finally:
            await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    finally:
        await admin.close()


async def terminate(server: str, database: str) -> None:
    admin = await asyncpg.connect(server)
    name = database.partition("?")[0].rpartition("/")[2]
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
    await admin.close()


async def test_tasks_go_on_while_the_database_is_away(nodes: AgentNodes, postgres_server: str, tmp_path: Path) -> None:
    nodes.change(report_seconds=0.05)
    gate = tmp_path / "gate"
    async with nodes.running():
        script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.02; done; echo over"
        for device, name in enumerate(("a", "b")):
            await nodes.start(name, "sh", "-c", script, devices=(device,))
            await nodes.started(name)
        async with database_away(postgres_server, nodes.database):
            gate.touch()
            await until(lambda: nodes.output("a") == nodes.output("b") == b"begun\nover\n")
            async with nodes.http() as http:
                answer = await http.get("/v1/nodes/n1/allocations/a/log?follow=true")
            assert answer.content == b"begun\nover\n", "output needs no database"
            reports = sum(isinstance(event, NodeReport) for event in nodes.told)
            # The time in which a hundred reports would have been made, had the bus been there to take them.
            await asyncio.sleep(1.0)
        for name in ("a", "b"):
            assert (await nodes.ended(name)).exit_code == 0
        at_the_end = sum(isinstance(event, NodeReport) for event in nodes.told)
        assert at_the_end - reports < 10, "reports of the past do not pile up"
        await nodes.start("c", "true")
        await nodes.ended("c")


async def test_connections_that_break_again_and_again(nodes: AgentNodes, postgres_server: str) -> None:
    nodes.change(executor="simulated", simulated_run_seconds=0.05)
    names = [f"t{number}" for number in range(200)]
    async with nodes.running():
        await nodes.registration()

        async def command() -> None:
            for name in names:
                await nodes.start(name, "train", devices=())

        commanding = asyncio.create_task(command())
        while not commanding.done():
            await terminate(postgres_server, nodes.database)
            await asyncio.sleep(0.1)
        await commanding
        for name in names:
            await nodes.ended(name)


async def test_an_agent_that_starts_without_a_database_waits_for_it(nodes: AgentNodes, postgres_server: str) -> None:
    async with nodes.running():
        await nodes.registration()
    told = len(nodes.told)
    async with database_away(postgres_server, nodes.database), nodes.running():
        pass
    async with nodes.running():
        await nodes.until(lambda: sum(isinstance(event, NodeRegistered) for event in nodes.told[told:]) == 2)
        await nodes.start("a", "true")
        await nodes.ended("a")


async def test_a_position_beyond_the_log_reads_it_again(nodes: AgentNodes, tmp_path: Path) -> None:
    """A database put back from a backup: what it has is read again, and the node registers with it anew."""
    script = f"echo ran >> {tmp_path}/ran"
    async with nodes.running():
        await nodes.start("a", "sh", "-c", script)
        await nodes.ended("a")
    with Journal(nodes.node_folder() / "journal.sqlite", new_journal_id="x") as journal, journal.transaction():
        position = journal.position(NODES_COMMANDS, 0)
        assert position is not None
        journal.advance(NODES_COMMANDS, 0, Position(position.incarnation, 1000))
    told = len(nodes.told)
    async with nodes.running():
        await nodes.start("b", "sh", "-c", script)
        await nodes.ended("b")
        await nodes.until(lambda: sum(isinstance(event, NodeRegistered) for event in nodes.told[told:]) == 2)
    assert (tmp_path / "ran").read_text() == "ran\n" * 2
    assert nodes.kinds("a") == ["TaskStarted", "TaskExited", "DevicesEmptied"]


async def test_commands_that_retention_took_are_left_to_placement(nodes: AgentNodes, runtime: Runtime) -> None:
    async with nodes.running():
        await nodes.start("a", "true")
        await nodes.ended("a")
    await nodes.start("lost", "true")
    async with runtime.engine.begin() as connection:
        topic = "(SELECT topic_id FROM yard_bus.topic WHERE name = :name)"
        await connection.execute(text(f"DELETE FROM yard_bus.log WHERE topic_id = {topic}"), {"name": NODES_COMMANDS})
        await connection.execute(
            text(f"UPDATE yard_bus.partition SET first_offset = next_offset WHERE topic_id = {topic}"),
            {"name": NODES_COMMANDS},
        )
    async with nodes.running():
        assert (await nodes.report()).allocations == [], "by which placement sees that a command got lost"
        await nodes.start("b", "true")
        await nodes.ended("b")


async def test_a_new_incarnation_of_the_topic_is_read_from_its_beginning(nodes: AgentNodes, runtime: Runtime) -> None:
    async with nodes.running():
        for name in ("a", "b"):
            await nodes.start(name, "true")
            await nodes.ended(name)
    async with runtime.engine.begin() as connection:
        await connection.execute(
            text("UPDATE yard_bus.topic SET incarnation = 'another' WHERE name = :name"), {"name": NODES_COMMANDS}
        )
    assert isinstance(runtime.bus, PostgresBus)
    await runtime.bus.load_topics()
    async with nodes.running():
        await nodes.start("c", "true")
        await nodes.ended("c")
    with Journal(nodes.node_folder() / "journal.sqlite", new_journal_id="x") as journal:
        assert journal.position(NODES_COMMANDS, 0) == Position("another", 3)
    for name in ("a", "b", "c"):
        assert nodes.kinds(name) == ["TaskStarted", "TaskExited", "DevicesEmptied"]


@pytest.fixture
def fleet(nodes: AgentNodes) -> AgentNodes:
    nodes.nodes = [{"name": f"n{number}", "devices": "2xL40S-48GB"} for number in (1, 2, 3)]
    return nodes


async def test_each_node_obeys_its_own_commands(fleet: AgentNodes) -> None:
    async with fleet.running():
        for node in ("n1", "n2", "n3"):
            await fleet.start(f"on-{node}", "sh", "-c", "echo $YARD_NODE", node=node)
        for node in ("n1", "n2", "n3"):
            await fleet.ended(f"on-{node}")
            assert fleet.output(f"on-{node}", node) == f"{node}\n".encode()


async def test_an_idle_node_moves_on_with_its_reports(fleet: AgentNodes) -> None:
    async with fleet.running():
        await fleet.start("a", "true", node="n1")
        await fleet.ended("a")
        await fleet.report("n2")
    for node in ("n1", "n2", "n3"):
        with Journal(fleet.node_folder(node) / "journal.sqlite", new_journal_id="x") as journal:
            position = journal.position(NODES_COMMANDS, 0)
            assert position is not None
            assert position.next_offset == 1


async def test_a_keeper_that_hangs_holds_up_no_other_node(fleet: AgentNodes) -> None:
    async with fleet.running():
        await fleet.start("a", "true", node="n1")
        await fleet.ended("a")
        keeper = fleet.keeper_pid("n1")
        os.kill(keeper, signal.SIGSTOP)
        try:
            await fleet.start("late", "true", node="n1")
            await fleet.start("b", "true", node="n2")
            await fleet.ended("b")
            report = await fleet.report("n1")
            assert [(a.allocation_id, a.state) for a in report.allocations] == [("late", "starting")]
        finally:
            os.kill(keeper, signal.SIGCONT)
        await fleet.ended("late")
