"""Agents, keepers and journals that die at the worst moment: nothing is lost, nothing runs twice, all is told once."""

import asyncio
import random
import signal
import traceback
from pathlib import Path

import pytest

import yard_agent.app
from support.agent_node import AgentNodes, StandInDriver, kill, until
from support.processes import alive
from yard_agent.driver import DeviceProcess
from yard_agent.journal import Journal, JournalInUse
from yard_events.types import NodeRegistered

STUBBORN = "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo ready; while :; do sleep 0.05; done"


def ran(folder: Path, name: str) -> str:
    path = folder / "ran" / name
    return path.read_text() if path.exists() else ""


def once(folder: Path, name: str, then: str = "") -> tuple[str, ...]:
    """A command that leaves a line for each time it runs."""
    (folder / "ran").mkdir(exist_ok=True)
    return ("sh", "-c", f"echo ran >> {folder}/ran/{name}; {then}")


async def test_a_task_outlives_its_agent_and_its_end_is_told_later(nodes: AgentNodes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with nodes.running():
        await nodes.start("a", *once(tmp_path, "a", f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 3"))
        pid = (await nodes.started("a")).pid
        assert pid is not None
    assert alive(pid)
    gate.touch()
    await until(lambda: not alive(pid))
    assert nodes.kinds("a") == ["TaskStarted"]
    async with nodes.running():
        assert (await nodes.ended("a")).exit_code == 3
    assert ran(tmp_path, "a") == "ran\n"


async def test_commands_sent_meanwhile_are_obeyed_once(nodes: AgentNodes, tmp_path: Path) -> None:
    async with nodes.running():
        await nodes.start("a", *once(tmp_path, "a", "sleep 1000"))
        await nodes.started("a")
    await nodes.stop("a", grace=0)
    await nodes.start("b", *once(tmp_path, "b"))
    for _ in range(2):
        async with nodes.running():
            assert (await nodes.ended("a")).outcome == "stopped"
            await nodes.ended("b")
    assert (ran(tmp_path, "a"), ran(tmp_path, "b")) == ("ran\n", "ran\n")


async def test_agents_that_crash_again_and_again(nodes: AgentNodes, tmp_path: Path) -> None:
    chance = random.Random(7)
    async with nodes.running():
        await nodes.registration()
    names = [f"t{number}" for number in range(40)]

    async def command() -> None:
        for name in names:
            await nodes.start(name, *once(tmp_path, name, f"sleep {chance.random() / 5:.3f}"), devices=())
            if chance.random() < 0.2:
                await nodes.stop(name, grace=1)
            await asyncio.sleep(0.02)

    commanding = asyncio.create_task(command())
    while not commanding.done():
        async with nodes.running():
            await asyncio.sleep(chance.random() / 4)
    await commanding
    async with nodes.running():
        for name in names:
            end = await nodes.ended(name)
            assert end.outcome == "stopped" or end.exit_code == 0
            assert ran(tmp_path, name) == "ran\n" or (end.outcome == "stopped" and not ran(tmp_path, name))


async def test_agent_processes_that_are_killed(nodes: AgentNodes, tmp_path: Path) -> None:
    """kill -9 of the real process while it obeys and tells."""
    chance = random.Random(3)
    async with nodes.running():
        await nodes.registration()
    names = [f"t{number}" for number in range(60)]
    sent = 0
    for round_number in range(4):
        async with nodes.process():
            registered = sum(isinstance(event, NodeRegistered) for event in nodes.told)
            for name in names[sent : sent + 10]:
                await nodes.start(name, *once(tmp_path, name, "sleep 0.1"), devices=())
            sent += 10
            await nodes.until(lambda n=registered: sum(isinstance(e, NodeRegistered) for e in nodes.told) > n)
            for name in names[sent : sent + 5]:
                await nodes.start(name, *once(tmp_path, name, "sleep 0.1"), devices=())
            sent += 5
            await asyncio.sleep(chance.random() * 0.1 * round_number)
    async with nodes.process():
        for name in names[:sent]:
            assert (await nodes.ended(name)).exit_code == 0
    assert {name: ran(tmp_path, name) for name in names[:sent]} == dict.fromkeys(names[:sent], "ran\n")


async def test_a_keepers_death_is_told_once_and_leaves_nothing(nodes: AgentNodes, tmp_path: Path) -> None:
    async with nodes.running():
        await nodes.start("done", "sh", "-c", "exit 6")
        await nodes.ended("done")
        await nodes.start("a", "sh", "-c", STUBBORN)
        await until(lambda: nodes.output("a") == b"ready\n")
        kill(nodes.keeper_pid())
        end = await nodes.ended("a")
        assert (end.outcome, end.reason, end.exit_code) == ("failed", "keeper_lost", None)
        assert nodes.processes() == set()
        await nodes.start("b", *once(tmp_path, "b"))
        assert (await nodes.ended("b")).exit_code == 0
    assert nodes.kinds("a") == ["TaskStarted", "TaskExited", "DevicesEmptied"]
    assert nodes.kinds("done") == ["TaskStarted", "TaskExited", "DevicesEmptied"]


async def test_agent_and_keeper_die_together(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "sh", "-c", STUBBORN)
        await until(lambda: nodes.output("a") == b"ready\n")
        keeper = nodes.keeper_pid()
    kill(keeper)
    await nodes.stop("a", grace=30)
    async with nodes.running():
        end = await nodes.ended("a")
        assert (end.outcome, end.reason) == ("failed", "keeper_lost")
    assert nodes.processes() == set()


async def test_a_stop_that_never_reached_the_keeper_still_gives_the_grace(nodes: AgentNodes) -> None:
    """The agent died between its journal's commit and its word to the keeper."""
    script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    async with nodes.running():
        await nodes.start("a", "sh", "-c", script)
        await nodes.started("a")
        await until(lambda: nodes.output("a") == b"ready\n")
    with Journal(nodes.node_folder() / "journal.sqlite", new_journal_id="x") as journal, journal.transaction():
        journal.record_command("a", 2, state="stopping")
        journal.record_stop("a", "stopping", "cancelled", 30.0)
    async with nodes.running():
        end = await nodes.ended("a")
        assert (end.outcome, end.exit_code) == ("stopped", 7)


async def test_a_start_that_never_reached_the_keeper_is_made(nodes: AgentNodes, tmp_path: Path) -> None:
    async with nodes.running():
        work = await nodes.work(*once(tmp_path, "a"))
    with Journal(nodes.node_folder() / "journal.sqlite", new_journal_id="x") as journal, journal.transaction():
        journal.record_command("a", 1, state="starting", work=work)
    async with nodes.running():
        assert (await nodes.ended("a")).exit_code == 0
    assert ran(tmp_path, "a") == "ran\n"


async def test_a_lost_journal_ends_what_ran_before_its_epoch_is_announced(nodes: AgentNodes, tmp_path: Path) -> None:
    async with nodes.running():
        old = await nodes.registration()
        for name in ("a", "b", "c"):
            await nodes.start(name, "sh", "-c", STUBBORN, devices=())
        for name in ("a", "b", "c"):
            await until(lambda name=name: nodes.output(name) == b"ready\n")
    for path in nodes.node_folder().glob("journal.sqlite*"):
        path.unlink()
    told = len(nodes.told)
    async with nodes.running():
        left = nodes.processes()
        await nodes.until(lambda: any(isinstance(event, NodeRegistered) for event in nodes.told[told:]))
        assert left == set(), "nothing of the old epoch is left when the new one is announced"
        new = await nodes.registration()
        assert (new.boot_id, new.journal_id != old.journal_id) == (old.boot_id, True)
        assert new.epoch != old.epoch
        await nodes.start("d", *once(tmp_path, "d"))
        assert (await nodes.ended("d")).exit_code == 0
        assert (await nodes.report()).allocations == []


async def test_a_reboot_closes_what_was_live(nodes: AgentNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes.running():
        old = await nodes.registration()
        await nodes.start("a", "sh", "-c", STUBBORN)
        await nodes.started("a")
        await nodes.prepare("b", "true", devices=(1,))
        await nodes.until(lambda: nodes.kinds("b") == ["TaskReady"])
    monkeypatch.setattr(yard_agent.app, "read_boot_id", lambda: "another-boot")
    told = len(nodes.told)
    async with nodes.running():
        await nodes.until(lambda: any(isinstance(event, NodeRegistered) for event in nodes.told[told:]))
        new = await nodes.registration()
        assert (new.boot_id, new.journal_id) == ("another-boot", old.journal_id)
        assert nodes.processes() == set()
        assert (await nodes.report()).allocations == []
    assert (nodes.kinds("a"), nodes.kinds("b")) == (["TaskStarted"], ["TaskReady"])


async def test_a_task_that_the_executor_forgot_is_told_as_lost(nodes: AgentNodes) -> None:
    """Simulated tasks end with their agent; nobody may wait for them for ever. The devices have the last word."""
    nodes.driver = driver = StandInDriver()
    nodes.change(executor="simulated", simulated_run_seconds=1000)
    async with nodes.running():
        await nodes.start("a", "train")
        await nodes.started("a")
        uuid = (await nodes.registration()).devices[0].uuid
    driver.held[uuid] = [4711]
    async with nodes.running():
        await nodes.until(lambda: "TaskExited" in nodes.kinds("a"))
        looks = driver.looks
        await until(lambda: driver.looks > looks + 2)
        assert nodes.kinds("a") == ["TaskStarted", "TaskExited"]
        driver.held.clear()
        end = await nodes.ended("a")
    assert (end.outcome, end.reason) == ("failed", "keeper_lost")


async def test_sigterm_leaves_tasks_running_and_ends_the_agent_soon(nodes: AgentNodes) -> None:
    async with nodes.process() as agent:
        await nodes.start("a", "sleep", "1000")
        pid = (await nodes.started("a")).pid
        assert pid is not None
        async with nodes.http() as http, http.stream("GET", "/v1/nodes/n1/allocations/a/log?follow=true") as answer:
            assert answer.status_code == 200
            agent.send_signal(signal.SIGTERM)
            began = asyncio.get_running_loop().time()
            assert await asyncio.to_thread(agent.wait, 10) == 0
            assert asyncio.get_running_loop().time() - began < 2
    assert alive(pid)
    async with nodes.running():
        await nodes.stop("a", grace=0)
        await nodes.ended("a")


class DriverThatGoesAway(StandInDriver):
    def processes(self, uuid: str) -> list[DeviceProcess]:
        raise RuntimeError("the library is gone")


async def test_the_failure_of_one_node_ends_the_process_with_name_and_cause(nodes: AgentNodes) -> None:
    nodes.driver = DriverThatGoesAway()
    async with nodes.running(fails=True) as agent:
        await nodes.start("a", "true")
        async with asyncio.timeout(20):
            await asyncio.wait([agent])
        error = agent.exception()
        assert isinstance(error, BaseExceptionGroup)
        text = "".join(traceback.format_exception(error))
    assert "node n1" in text
    assert "RuntimeError: the library is gone" in text
    nodes.driver = None
    async with nodes.running():
        assert (await nodes.ended("a")).exit_code == 0


async def test_a_damaged_journal_stops_the_process_with_instructions(nodes: AgentNodes) -> None:
    nodes.node_folder().mkdir(parents=True)
    (nodes.node_folder() / "journal.sqlite").write_bytes(b"this is not a database" * 500)
    async with nodes.process() as agent:
        _, errors = await asyncio.to_thread(agent.communicate, timeout=20)
        assert agent.returncode != 0
    assert b"Move the file away" in errors


async def test_a_second_agent_of_a_node_waits_for_the_first(nodes: AgentNodes) -> None:
    async with nodes.running():
        with pytest.raises(JournalInUse):
            await nodes.build()
        await nodes.start("a", "true")
        assert (await nodes.ended("a")).exit_code == 0
    async with nodes.running():
        await nodes.start("b", "true")
        assert (await nodes.ended("b")).exit_code == 0
