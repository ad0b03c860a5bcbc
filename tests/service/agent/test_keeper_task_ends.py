"""How tasks end, and what their output file then holds."""

import os
import stat
import sys
from pathlib import Path

import pytest

from support.keeper_node import Connection, Node
from yard_agent.keeper_client import TaskLaunch, TaskState
from yard_domain.errors import Permanent
from yard_domain.reasons import Reason


async def test_a_command_exits_with_its_code(node: Node, agent: Connection) -> None:
    for code in (0, 1, 255):
        end = await agent.run(node.launch("sh", "-c", f"exit {code}"))
        assert (end.reason, end.exit_code, end.signal, end.detail) == (Reason.EXIT_CODE, code, None, None)


async def test_a_command_is_killed_by_a_signal(node: Node, agent: Connection) -> None:
    for signum in (9, 11, 15):
        end = await agent.run(node.launch("sh", "-c", f"kill -{signum} $$"))
        assert (end.reason, end.exit_code, end.signal) == (Reason.SIGNAL, None, signum)


async def test_states_come_in_order(node: Node, agent: Connection) -> None:
    launch = node.launch("true")
    await agent.run(launch)
    seen = agent.seen[launch.allocation_id]
    assert [(status.state, status.emptied) for status in seen] == [
        (TaskState.RUNNING, False),
        (TaskState.EXITED, False),
        (TaskState.EXITED, True),
    ]


async def test_what_cannot_start_says_exactly_why(node: Node, agent: Connection, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\0\1\2\3")
    garbage.chmod(0o755)
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    no_output = node.launch("true")
    no_output = TaskLaunch(no_output.allocation_id, ("true",), no_output.env, None, str(tmp_path / "absent" / "out"))
    cases = [
        (node.launch("no-such-command"), Reason.COMMAND_NOT_FOUND, "no-such-command"),
        (node.launch("/no/such/command"), Reason.COMMAND_NOT_FOUND, "/no/such/command"),
        (node.launch("no-such-command", env={"PATH": ""}), Reason.COMMAND_NOT_FOUND, "no-such-command"),
        (node.launch(str(plain)), Reason.COMMAND_NOT_EXECUTABLE, "Permission denied"),
        (node.launch(str(garbage)), Reason.COMMAND_NOT_EXECUTABLE, "Exec format error"),
        (node.launch(str(orphan)), Reason.COMMAND_NOT_EXECUTABLE, "interpreter"),
        (node.launch(str(tmp_path)), Reason.COMMAND_NOT_EXECUTABLE, "Permission denied"),
        (node.launch("true", workdir="/no/such/folder"), Reason.WORKDIR_MISSING, "No such file"),
        (node.launch("true", workdir=str(plain)), Reason.WORKDIR_MISSING, "Not a directory"),
        (node.launch("true", "x" * 200_000), Reason.START_FAILED, "Argument list too long"),
        (no_output, Reason.START_FAILED, "output file"),
    ]
    for launch, reason, words in cases:
        end = await agent.run(launch)
        assert (end.reason, end.exit_code, end.signal) == (reason, None, None), launch
        assert words in (end.detail or ""), launch
        assert all(status.state is TaskState.EXITED for status in agent.seen[launch.allocation_id]), "it never ran"


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ()},
        {"argv": ("",)},
        {"argv": ("a\0b",)},
        {"env": {"A": "\0"}},
        {"env": {"A=B": "c"}},
        {"output_path": "x"},
    ],
)
async def test_a_launch_that_makes_no_sense_is_refused(
    node: Node, agent: Connection, changes: dict[str, object]
) -> None:
    valid = node.launch("true")
    fields = {name: getattr(valid, name) for name in ("allocation_id", "argv", "env", "workdir", "output_path")}
    with pytest.raises(Permanent):
        await agent.client.start(TaskLaunch(**(fields | changes)))  # type: ignore[arg-type]
    assert await agent.client.statuses() == []


async def test_output_is_exact_in_every_byte_and_private(node: Node, agent: Connection) -> None:
    launch = node.python("import os\nfor n in range(256): os.write(1 + n % 2, bytes([n]) * 3)\n")
    await agent.run(launch)
    assert node.output(launch) == b"".join(bytes([n]) * 3 for n in range(256))
    assert stat.S_IMODE(Path(launch.output_path).stat().st_mode) == 0o600


async def test_output_is_appended_to_what_is_there(node: Node, agent: Connection) -> None:
    launch = node.launch("sh", "-c", "echo two")
    Path(launch.output_path).write_bytes(b"one\n")
    await agent.run(launch)
    assert node.output(launch) == b"one\ntwo\n"


async def test_a_task_gets_its_environment_and_nothing_else(node: Node, agent: Connection, tmp_path: Path) -> None:
    launch = node.launch(sys.executable, "-I", "-S", "-c", _FACTS, env={"ODD": "a b\n=ü"}, workdir=str(tmp_path))
    await agent.run(launch)
    facts = dict(line.split("\t", 1) for line in node.output(launch).decode().splitlines())
    entries = [os.fsdecode(entry).split("=", 1) for entry in eval(facts["env"]).rstrip(b"\0").split(b"\0")]
    assert dict(entries) == launch.env
    assert facts["cwd"] == str(tmp_path)
    assert facts["leads session and group"] == "True"
    assert facts["stdin"] == "/dev/null"
    assert facts["fds"] == "[0, 1, 2]"
    assert facts["blocked signals"] == "set()"
    # glibc keeps 32 and 33 for its threads: no program can set them, so what is inherited for them stays.
    reserved = 1 << 31 | 1 << 32
    assert int(facts["ignored signals"], 16) & ~reserved == 0, facts["ignored signals"]


# Python itself ignores SIGPIPE and SIGXFSZ; those two are set back before the mask of ignored signals is read.
_FACTS = """
import os, signal
print('env', open('/proc/self/environ', 'rb').read(), sep='\\t')
print('cwd', os.getcwd(), sep='\\t')
print('leads session and group', os.getsid(0) == os.getpgid(0) == os.getpid(), sep='\\t')
print('stdin', os.readlink('/proc/self/fd/0'), sep='\\t')
fds = []
for fd in range(256):
    try: os.fstat(fd)
    except OSError: continue
    fds.append(fd)
print('fds', fds, sep='\\t')
print('blocked signals', signal.pthread_sigmask(signal.SIG_BLOCK, ()), sep='\\t')
for signum in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(signum, signal.SIG_DFL)
ignored = [line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')][0]
print('ignored signals', ignored, sep='\\t')
"""


async def test_many_tasks_at_once_all_end_right(node: Node, agent: Connection) -> None:
    launches = [node.launch("sh", "-c", f"echo {n}; exit {n % 7}") for n in range(50)]
    for launch in launches:
        await agent.client.start(launch)
    for n, launch in enumerate(launches):
        end = await agent.emptied(launch.allocation_id)
        assert end.exit_code == n % 7
        assert node.output(launch) == f"{n}\n".encode()


async def test_forgetting_waits_for_the_end(node: Node, agent: Connection) -> None:
    launch = node.launch("sh", "-c", "read x < fifo", workdir=str(node.folder))
    os.mkfifo(node.folder / "fifo")
    await agent.client.start(launch)
    await agent.running(launch.allocation_id)
    with pytest.raises(Exception, match="not ended"):
        await agent.client.forget(launch.allocation_id)
    (node.folder / "fifo").write_text("go on\n")
    await agent.emptied(launch.allocation_id)
    await agent.client.forget(launch.allocation_id)
    await agent.client.forget(launch.allocation_id)
    assert await agent.client.statuses() == []
