"""Whatever a task leaves running is ended, and `emptied` is said only when nothing is left."""

import asyncio
import sys
import time
from pathlib import Path

from support.keeper_node import Connection, Node, until
from support.processes import alive
from yard_agent.keeper_client import TaskLaunch, TaskState
from yard_domain.reasons import Reason

# Children of a task, each printing its pid once it is as stubborn as its name says.
DEAF = (
    "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); signal.pause()"
)
DAEMON = """
import os, signal
def grandchild():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork(): os._exit(0)
    print(os.getpid(), flush=True)
    while True: signal.pause()
if os.fork() == 0: grandchild()
"""
HOLD = "import signal\nwhile True: signal.pause()\n"
POLITE = """
import os, signal
def leave(signum, frame):
    os.write(1, b"bye\\n")
    os._exit(3)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"up\\n")
"""


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


async def printed(launch: TaskLaunch, count: int) -> set[int]:
    """The pids that the task's processes printed, once there are so many."""
    path = Path(launch.output_path)
    await until(lambda: path.exists() and len(path.read_bytes().split()) == count)
    return {int(word) for word in path.read_bytes().split()}


async def test_stop_ends_a_willing_task_with_sigterm(node: Node, agent: Connection) -> None:
    launch = node.python("import os\nprint(os.getpid(), flush=True)\n" + HOLD)
    await agent.client.start(launch)
    await printed(launch, 1)
    await agent.client.stop(launch.allocation_id, grace_seconds=60)
    end = await agent.emptied(launch.allocation_id)
    assert (end.reason, end.signal) == (Reason.SIGNAL, 15)


async def test_stop_lets_a_task_end_its_own_way_within_the_grace(node: Node, agent: Connection) -> None:
    launch = node.python(POLITE + HOLD)
    await agent.client.start(launch)
    await until(lambda: Path(launch.output_path).exists() and node.output(launch) == b"up\n")
    await agent.client.stop(launch.allocation_id, grace_seconds=60)
    end = await agent.emptied(launch.allocation_id)
    assert (end.reason, end.exit_code) == (Reason.EXIT_CODE, 3)
    assert node.output(launch) == b"up\nbye\n"


async def test_what_ignores_sigterm_is_killed_after_the_grace(node: Node, agent: Connection) -> None:
    deaf_child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-I', '-S', '-c', {DEAF!r}]); {DEAF}"
    launch = node.python(deaf_child)
    await agent.client.start(launch)
    pids = await printed(launch, 2)
    began = time.monotonic()
    await agent.client.stop(launch.allocation_id, grace_seconds=0.5)
    end = await agent.emptied(launch.allocation_id)
    assert time.monotonic() - began >= 0.5
    assert (end.reason, end.signal) == (Reason.SIGNAL, 9)
    assert not any(alive(pid) for pid in pids)


async def test_stop_without_grace_kills_a_running_tree_at_once(node: Node, agent: Connection) -> None:
    launch = node.python(DAEMON + "print(os.getpid(), flush=True)\n" + HOLD)
    await agent.client.start(launch)
    pids = await printed(launch, 2)
    await agent.client.stop(launch.allocation_id, grace_seconds=0)
    end = await agent.emptied(launch.allocation_id)
    assert end.signal == 9
    assert not any(alive(pid) for pid in pids)


async def test_a_second_stop_can_only_shorten_the_grace(node: Node, agent: Connection) -> None:
    launch = node.python(DEAF)
    await agent.client.start(launch)
    await printed(launch, 1)
    await agent.client.stop(launch.allocation_id, grace_seconds=3600)
    await agent.client.stop(launch.allocation_id, grace_seconds=0.1)
    await agent.client.stop(launch.allocation_id, grace_seconds=3600)
    assert (await agent.emptied(launch.allocation_id)).signal == 9


async def test_a_stop_right_behind_the_start_ends_the_task(node: Node, agent: Connection) -> None:
    launch = node.python(HOLD)
    await asyncio.gather(agent.client.start(launch), agent.client.stop(launch.allocation_id, grace_seconds=1))
    end = await agent.emptied(launch.allocation_id)
    assert end.state is TaskState.EXITED
    assert end.signal in (9, 15)


async def test_daemons_left_behind_are_swept_after_the_root_exits(node: Node, agent: Connection) -> None:
    launch = node.python(DAEMON + "os._exit(7)\n")
    await agent.client.start(launch)
    exited = await agent.exited(launch.allocation_id)
    assert (exited.exit_code, exited.emptied) == (7, False), "the exit is told before the sweep is over"
    await agent.emptied(launch.allocation_id)
    assert node.processes() == set()


async def test_left_children_get_sigterm_and_time_before_sigkill(node: Node, agent: Connection) -> None:
    launch = node.python(
        "import os\nreader, writer = os.pipe()\nif os.fork() == 0:\n"
        + indented(POLITE + "os.write(writer, b'1')\n" + HOLD)
        + "os.read(reader, 1)\n"
    )
    await agent.run(launch)
    assert node.output(launch) == b"up\nbye\n"


async def test_a_daemon_without_the_marker_is_remembered_from_the_tree(node: Node, agent: Connection) -> None:
    """It hides its environment and its session; only having seen it below the root tells whose it is."""
    hidden = f"env -i /usr/bin/setsid {sys.executable} -I -S -c '{DEAF}'"
    launch = node.launch("sh", "-c", f"{hidden} & sleep 1.5; exit 0")
    other = node.python("import os\nprint(os.getpid(), flush=True)\n" + HOLD)
    await agent.client.start(other)
    await agent.client.start(launch)
    (pid,) = await printed(launch, 1)
    await agent.emptied(launch.allocation_id)
    assert not alive(pid)
    (bystander,) = await printed(other, 1)
    assert alive(bystander)
    await agent.client.stop(other.allocation_id, grace_seconds=1)
    await agent.emptied(other.allocation_id)


async def test_a_fork_chain_cannot_outrun_the_sweep(node: Node, agent: Connection) -> None:
    chain = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.fork(): os._exit(0)\n"
        # It ends by itself one day: what a killed test run leaves behind would eat a core for ever.
        "end = time.monotonic() + 60\n"
        "while time.monotonic() < end:\n os.setsid()\n if os.fork(): os._exit(0)\n time.sleep(0.002)\n"
    )
    launch = node.python(chain)
    await agent.run(launch)
    assert node.processes() == set()


async def test_ending_one_task_leaves_its_neighbours_alone(node: Node, agent: Connection) -> None:
    neighbours = [node.python(DAEMON + HOLD) for _ in range(3)]
    for neighbour in neighbours:
        await agent.client.start(neighbour)
    daemons = [await printed(neighbour, 1) for neighbour in neighbours]
    await agent.client.stop(neighbours[1].allocation_id, grace_seconds=0)
    await agent.emptied(neighbours[1].allocation_id)
    assert [alive(*pids) for pids in daemons] == [True, False, True]
    for neighbour in neighbours:
        await agent.client.stop(neighbour.allocation_id, grace_seconds=0)
        await agent.emptied(neighbour.allocation_id)
