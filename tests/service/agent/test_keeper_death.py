"""kill -9 of the keeper: what it ran is ended and told as lost, what had ended stays as it was, nothing runs twice."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.keeper_node import WITHIN_SECONDS, Connection, Node, until
from support.processes import alive
from yard_agent.keeper.process_tree import boot_id, read_process
from yard_agent.keeper_client import TaskLaunch, TaskState
from yard_domain.reasons import Reason

STUBBORN_TREE = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
while True: signal.pause()
"""

KILL_LATER = "import os, time; print(flush=True); time.sleep({seconds}); os.kill({pid}, 9)"


def output_of(launch: TaskLaunch) -> bytes:
    """Empty also when the task never came to open it."""
    path = Path(launch.output_path)
    return path.read_bytes() if path.exists() else b""


def kill_keeper(agent: Connection) -> None:
    assert agent.client.keeper_pid is not None
    os.kill(agent.client.keeper_pid, signal.SIGKILL)


async def replace_keeper(agent: Connection) -> None:
    keeper = agent.client.keeper_pid
    kill_keeper(agent)
    await until(lambda: agent.client.keeper_pid != keeper)


async def tree(node: Node, path: str) -> list[int]:
    await until(lambda: Path(path).exists() and len(Path(path).read_bytes().split()) == 2)
    return [int(word) for word in Path(path).read_bytes().split()]


async def test_running_trees_are_killed_and_told_as_lost(node: Node, agent: Connection) -> None:
    launch = node.python(STUBBORN_TREE)
    done = node.launch("sh", "-c", "exit 6")
    await agent.run(done)
    await agent.client.start(launch)
    pids = await tree(node, launch.output_path)
    kill_keeper(agent)
    end = await agent.emptied(launch.allocation_id)
    assert (end.state, end.reason, end.exit_code, end.signal) == (TaskState.EXITED, Reason.KEEPER_LOST, None, None)
    assert not any(alive(pid) for pid in pids)
    assert node.lost, "the agent is told that its keeper died"
    statuses = {status.allocation_id: status for status in await agent.client.statuses()}
    assert statuses[done.allocation_id].exit_code == 6
    again = await agent.client.start(launch)
    assert again.reason == Reason.KEEPER_LOST
    assert len(node.output(launch).split()) == 2, "it did not run again"


async def test_descendants_are_found_when_the_root_died_with_the_keeper(node: Node, agent: Connection) -> None:
    launch = node.python(STUBBORN_TREE)
    await agent.client.start(launch)
    pids = await tree(node, launch.output_path)
    root = (await agent.running(launch.allocation_id)).pid
    kill_keeper(agent)
    assert root is not None
    os.kill(root, signal.SIGKILL)
    end = await agent.emptied(launch.allocation_id)
    assert end.reason == Reason.KEEPER_LOST
    assert not any(alive(pid) for pid in pids)


async def test_a_sweep_it_died_in_is_finished_and_the_exit_code_kept(node: Node, agent: Connection) -> None:
    root_leaves = "if os.getsid(0) == os.getpid(): os._exit(8)\n"
    launch = node.python(STUBBORN_TREE.replace("while True", f"{root_leaves}while True"))
    await agent.client.start(launch)
    await agent.exited(launch.allocation_id)
    kill_keeper(agent)
    end = await agent.emptied(launch.allocation_id)
    assert (end.reason, end.exit_code) == (Reason.EXIT_CODE, 8)


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8, 16])
async def test_whenever_it_dies_each_task_ran_at_most_once(node: Node, agent: Connection, delay_ms: int) -> None:
    """Killed in the middle of a burst of starts; the client repeats what got no answer."""
    keeper = agent.client.keeper_pid
    assert keeper is not None
    launches = [node.launch("sh", "-c", "echo ran; exit 3") for _ in range(20)]
    killer = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            KILL_LATER.format(seconds=delay_ms / 1000, pid=keeper),
        ],
        stdout=subprocess.PIPE,
    )
    assert killer.stdout is not None
    killer.stdout.readline()
    for launch in launches:
        await agent.client.start(launch)
    ends = [await agent.emptied(launch.allocation_id) for launch in launches]
    killer.wait()
    killer.stdout.close()
    for launch, end in zip(launches, ends, strict=True):
        ran = output_of(launch)
        if end.reason == Reason.KEEPER_LOST:
            assert ran in (b"", b"ran\n")
        else:
            assert (end.exit_code, ran) == (3, b"ran\n")


async def test_a_child_whose_keeper_dies_before_it_has_leave_never_runs(node: Node, agent: Connection) -> None:
    """Many starts in one batch: all children are forked before the first may go on, and the keeper is stopped there."""
    keeper = agent.client.keeper_pid
    assert keeper is not None
    folder = Path(f"/proc/{keeper}/task/{keeper}/children")
    launches = [node.launch("sh", "-c", "echo ran") for _ in range(200)]
    os.kill(keeper, signal.SIGSTOP)
    starting = [asyncio.create_task(agent.client.start(launch)) for launch in launches]
    await asyncio.sleep(0)
    os.kill(keeper, signal.SIGCONT)
    await until(lambda: len(folder.read_text().split()) > 3)
    os.kill(keeper, signal.SIGKILL)
    await asyncio.gather(*starting)
    ends = [await agent.emptied(launch.allocation_id) for launch in launches]
    outputs = [output_of(launch) for launch in launches]
    assert set(outputs) <= {b"", b"ran\n"}
    for end, output in zip(ends, outputs, strict=True):
        assert end.reason == Reason.KEEPER_LOST or output == b"ran\n"


async def test_a_call_in_the_moment_the_connection_breaks_is_made_again(node: Node, agent: Connection) -> None:
    """Writing finds the pipe broken before the reader is told: the call used to repeat itself and never yield."""
    writer = agent.client._writer
    assert writer is not None
    writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
    async with asyncio.timeout(WITHIN_SECONDS):
        assert await asyncio.create_task(agent.client.statuses()) == []
    assert node.lost


def write_log(node: Node, *records: dict[str, object], tail: bytes = b"") -> None:
    node.log_path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records) + tail)


def intent(allocation_id: str, boot: str | None = None) -> dict[str, object]:
    return {"r": "intent", "id": allocation_id, "boot": boot or boot_id()}


async def test_an_intent_without_a_pid_is_told_as_lost_and_not_run(node: Node) -> None:
    launch = node.launch("sh", "-c", "echo ran")
    write_log(node, intent(launch.allocation_id))
    async with node.connected() as agent:
        end = await agent.client.start(launch)
        assert (end.reason, end.emptied, end.pid) == (Reason.KEEPER_LOST, True, None)
        assert "not been started" in (end.detail or "")
    assert not Path(launch.output_path).exists()


async def test_a_torn_last_line_never_happened(node: Node) -> None:
    torn = b'{"r":"exit","id":"a","code":0'
    write_log(node, intent("a"), {"r": "pid", "id": "a", "pid": 1, "started": -5}, tail=torn)
    async with node.connected() as agent:
        (status,) = await agent.client.statuses()
        assert (status.reason, status.exit_code) == (Reason.KEEPER_LOST, None)
        assert (await agent.run(node.launch("true"))).exit_code == 0


async def test_a_pid_that_is_another_process_by_now_is_left_alone(node: Node) -> None:
    """Same number, other start time; also its session, which has the same number."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        process = read_process(stranger.pid)
        assert process is not None
        write_log(node, intent("a"), {"r": "pid", "id": "a", "pid": stranger.pid, "started": process.started - 1})
        async with node.connected() as agent:
            end = await agent.emptied("a")
            assert end.reason == Reason.KEEPER_LOST
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_process_that_the_log_names_is_killed(node: Node) -> None:
    """What a keeper leaves that died between the pid's record and the program's own environment."""
    left = subprocess.Popen(["sleep", "60"], start_new_session=True)
    process = read_process(left.pid)
    assert process is not None
    write_log(node, intent("a"), {"r": "pid", "id": "a", "pid": left.pid, "started": process.started})
    async with node.connected() as agent:
        await agent.emptied("a")
    assert left.wait() == -signal.SIGKILL


async def test_after_a_reboot_nothing_is_killed_and_the_reason_says_so(node: Node) -> None:
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        process = read_process(stranger.pid)
        assert process is not None
        write_log(
            node, intent("a", "another-boot"), {"r": "pid", "id": "a", "pid": stranger.pid, "started": process.started}
        )
        async with node.connected() as agent:
            assert (await agent.emptied("a")).reason == Reason.NODE_REBOOTED
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_finished_log_starts_anew(node: Node) -> None:
    async with node.connected() as agent:
        for _ in range(5):
            launch = node.launch("true")
            await agent.run(launch)
            await agent.client.forget(launch.allocation_id)
        assert node.log_path.stat().st_size > 0
        await replace_keeper(agent)
        assert node.log_path.stat().st_size == 0


async def test_two_deaths_in_a_row_keep_the_first_end(node: Node, agent: Connection) -> None:
    launch = node.python(STUBBORN_TREE)
    await agent.client.start(launch)
    await tree(node, launch.output_path)
    for _ in range(2):
        await replace_keeper(agent)
    (status,) = await agent.client.statuses()
    assert (status.reason, status.emptied) == (Reason.KEEPER_LOST, True)
