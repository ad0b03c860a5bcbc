"""The keeper outlives agents: tasks run on, exit codes wait, nothing is started twice."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from support.keeper_node import Connection, Node, until
from support.processes import alive, rss_kib
from yard_agent.keeper_client import TaskState

WAIT_FOR_FIFO = "echo ran >> {log}; read line < {fifo}; exit $line"


def fifo_task(node: Node, name: str) -> tuple[str, Path, Path]:
    fifo, log = node.folder / f"{name}.fifo", node.folder / f"{name}.log"
    os.mkfifo(fifo)
    return WAIT_FOR_FIFO.format(fifo=fifo, log=log), fifo, log


async def test_a_new_agent_finds_the_exit_code_of_a_task_that_ended_without_one(node: Node) -> None:
    script, fifo, _log = fifo_task(node, "a")
    launch = node.launch("sh", "-c", script)
    async with node.connected() as first:
        await first.client.start(launch)
        pid = (await first.running(launch.allocation_id)).pid
        keeper = first.client.keeper_pid
    assert pid is not None
    fifo.write_text("42\n")
    await until(lambda: not alive(pid))
    async with node.connected() as second:
        assert second.client.keeper_pid == keeper
        end = await second.emptied(launch.allocation_id)
        assert end.exit_code == 42


async def test_starting_a_known_task_again_runs_nothing(node: Node) -> None:
    script, fifo, log = fifo_task(node, "a")
    launch = node.launch("sh", "-c", script)
    async with node.connected() as first:
        await asyncio.gather(*(first.client.start(launch) for _ in range(3)))
        await first.running(launch.allocation_id)
    async with node.connected() as second:
        assert (await second.client.start(launch)).state is TaskState.RUNNING
        fifo.write_text("5\n")
        await second.emptied(launch.allocation_id)
        again = await second.client.start(launch)
        assert (again.state, again.exit_code) == (TaskState.EXITED, 5)
    assert log.read_text() == "ran\n"


AGENT = """
import asyncio, sys
from pathlib import Path
from yard_agent.keeper_client import KeeperClient, TaskLaunch
async def main():
    folder, output, allocation, script, mark = sys.argv[1:]
    client = KeeperClient(socket_path=Path(folder, "keeper.sock"), log_path=Path(folder, "keeper.log"),
                          stderr_path=Path(folder, "keeper.err"), on_lost=print)
    running = asyncio.create_task(client.run())
    name, value = mark.split("=")
    env = {"PATH": "/usr/bin:/bin", name: value}
    await client.start(TaskLaunch(allocation, ("sh", "-c", script), env, None, output))
    print("started", flush=True)
    await running
asyncio.run(main())
"""


async def test_kill_9_of_the_agent_and_its_group_leaves_keeper_and_task_alive(node: Node) -> None:
    script, fifo, log = fifo_task(node, "a")
    launch = node.launch("sh", "-c", script)
    arguments = (str(node.folder), launch.output_path, launch.allocation_id, script, node.mark)
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert agent.stdout is not None
    assert await asyncio.wait_for(agent.stdout.readline(), 20) == b"started\n"
    os.killpg(agent.pid, signal.SIGINT)  # Ctrl-C reaches a whole group
    os.killpg(agent.pid, signal.SIGKILL)
    await agent.wait()
    async with node.connected() as second:
        await second.running(launch.allocation_id)
        await until(log.exists)
        fifo.write_text("9\n")
        assert (await second.emptied(launch.allocation_id)).exit_code == 9


async def test_a_keeper_is_alone_on_its_node(node: Node) -> None:
    async with node.connected() as first, node.connected() as second:
        assert first.client.keeper_pid == second.client.keeper_pid
        launch = node.launch("true")
        await first.client.start(launch)
        await second.emptied(launch.allocation_id)


async def test_ten_agents_that_start_it_at_once_get_one_keeper(node: Node) -> None:
    async def keeper_of() -> int | None:
        async with node.connected() as connection:
            return connection.client.keeper_pid

    assert len(set(await asyncio.gather(*(keeper_of() for _ in range(10))))) == 1


async def test_an_idle_keeper_leaves_when_asked_and_a_busy_one_stays(node: Node) -> None:
    async with node.connected() as agent:
        script, fifo, _log = fifo_task(node, "a")
        launch = node.launch("sh", "-c", script)
        await agent.client.start(launch)
        await agent.running(launch.allocation_id)
        assert await agent.client.shutdown_if_idle() is False
        fifo.write_text("4\n")
        await agent.emptied(launch.allocation_id)
        keeper = agent.client.keeper_pid
        assert keeper is not None
        assert await agent.client.shutdown_if_idle() is True
        await until(lambda: not alive(keeper))
        (status,) = await agent.client.statuses()
        assert agent.client.keeper_pid != keeper
        assert status.exit_code == 4, "the next keeper knows it from the log"


async def test_sigterm_to_the_keeper_stops_its_tasks_and_keeps_their_ends(node: Node) -> None:
    async with node.connected() as agent:
        launch = node.python("import signal; print('up', flush=True); signal.pause()")
        await agent.client.start(launch)
        await until(lambda: Path(launch.output_path).exists() and node.output(launch) == b"up\n")
        keeper = agent.client.keeper_pid
        assert keeper is not None
        os.kill(keeper, signal.SIGTERM)
        await until(lambda: not alive(keeper))
        end = await agent.emptied(launch.allocation_id)
        assert end.signal == signal.SIGTERM


async def test_only_its_owner_may_open_the_socket(node: Node, agent: Connection) -> None:
    assert (node.folder / "keeper.sock").stat().st_mode & 0o777 == 0o600
    assert node.log_path.stat().st_mode & 0o777 == 0o600


async def test_paths_longer_than_a_socket_address_work(node: Node) -> None:
    node.folder = node.folder / ("long" * 30)
    node.folder.mkdir()
    async with node.connected() as agent:
        assert (await agent.run(node.launch("true"))).exit_code == 0


async def test_nonsense_on_the_socket_costs_only_that_connection(node: Node, agent: Connection) -> None:
    for nonsense in (b"{]\n", b"[1]\n", b"\xff\xfe\n"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(node.folder / "keeper.sock"))
            stranger.sendall(nonsense)
            stranger.settimeout(10)
            received = b""
            while data := stranger.recv(4096):
                received += data
            assert received.count(b"\n") == 1, "its greeting and no more"
    assert (await agent.run(node.launch("true"))).exit_code == 0


async def test_a_keeper_that_cannot_start_is_reported_with_its_reason(node: Node) -> None:
    node.log_path.mkdir()
    connecting = asyncio.create_task(node.connected().__aenter__())
    await until(lambda: bool(node.lost))
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    assert "Is a directory" in node.lost[0]
    node.log_path.rmdir()


async def test_200_tasks_cost_the_keeper_little_memory(node: Node, agent: Connection) -> None:
    """Reported rather than asserted tightly: a keeper must stay small, whatever its tasks do."""
    keeper = agent.client.keeper_pid
    assert keeper is not None
    idle = rss_kib(keeper)
    launches = [node.launch("sleep", "600") for _ in range(200)]
    for launch in launches:
        await agent.client.start(launch)
    for launch in launches:
        await agent.running(launch.allocation_id)
    busy = rss_kib(keeper)
    for launch in launches:
        await agent.client.stop(launch.allocation_id, grace_seconds=5)
    for launch in launches:
        await agent.emptied(launch.allocation_id)
        await agent.client.forget(launch.allocation_id)
    print(f"keeper: {idle} KiB idle, {busy} KiB with 200 tasks, {rss_kib(keeper)} KiB after them")
    assert busy < 40 * 1024
    assert await agent.client.statuses() == []
