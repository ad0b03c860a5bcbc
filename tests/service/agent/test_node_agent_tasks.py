"""Commands in, facts out: the ends of tasks, what their environment says, and which commands count."""

import signal
import sys
from pathlib import Path

import pytest

from support.agent_node import AgentNodes, until
from yard_events.types import TaskExited, TaskReady

SIGTERM_IGNORED_BY_ALL = (
    "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo ready; while :; do sleep 0.05; done"
)


def end_of(fact: TaskExited) -> tuple[str, str, int | None, int | None]:
    return fact.outcome, fact.reason, fact.exit_code, fact.signal


async def test_a_task_to_its_end(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "sh", "-c", "pwd; echo out; echo err >&2")
        end = await nodes.ended("a")
    assert end_of(end) == ("succeeded", "exit_code", 0, None)
    assert nodes.kinds("a") == ["TaskStarted", "TaskExited", "DevicesEmptied"]
    scratch = nodes.node_folder() / "work" / "a"
    assert nodes.output("a") == f"{scratch}\nout\nerr\n".encode()
    assert (await nodes.started("a")).pid is not None


ENDS = [
    pytest.param(["sh", "-c", "exit 1"], ("failed", "exit_code", 1, None), True, id="exit 1"),
    pytest.param(["sh", "-c", "kill -SEGV $$"], ("failed", "signal", None, signal.SIGSEGV), True, id="signal"),
    pytest.param(["/no/such/program"], ("failed", "command_not_found", None, None), False, id="not found"),
    pytest.param(["/etc/hostname"], ("failed", "command_not_executable", None, None), False, id="not executable"),
]


@pytest.mark.parametrize(("command", "end", "ran"), ENDS)
async def test_ends(nodes: AgentNodes, command: list[str], end: tuple[object, ...], ran: bool) -> None:
    async with nodes.running():
        await nodes.start("a", *command)
        assert end_of(await nodes.ended("a")) == end
    assert ("TaskStarted" in nodes.kinds("a")) is ran


async def test_a_missing_workdir(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "true", workdir="/no/such/folder")
        end = await nodes.ended("a")
    assert (end.reason, end.detail) == ("workdir_missing", "/no/such/folder: No such file or directory")


async def test_a_detail_cut_within_a_letter_is_told_all_the_same(nodes: AgentNodes) -> None:
    """The keeper cuts at so many bytes; of two names that differ by one byte, one is cut within a letter."""
    async with nodes.running():
        for name in ("/x", "/xx"):
            await nodes.start(name[1:], name + "ü" * 5000)
            end = await nodes.ended(name[1:])
            assert end.reason == "start_failed"
            assert end.detail is not None
            assert end.detail.startswith(name + "üü")


async def test_a_node_without_place_for_output_says_so(nodes: AgentNodes) -> None:
    async with nodes.running():
        (nodes.node_folder() / "output").write_text("not a folder")
        await nodes.start("a", "true")
        end = await nodes.ended("a")
        assert (end.outcome, end.reason) == ("failed", "start_failed")
        assert "output" in (end.detail or "")
        (nodes.node_folder() / "output").unlink()
        await nodes.start("b", "true")
        assert (await nodes.ended("b")).exit_code == 0


async def test_the_environment_is_as_documented(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start(
            "a",
            sys.executable,
            "-c",
            "import os; print(*sorted(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')",
            devices=(1, 3),
            env={"MASTER_PORT": "1", "EPOCHS": "3"},
            master_addr="10.0.0.7",
            master_port=4711,
            task_rank=5,
            world_size=8,
            local_rank=1,
            local_world_size=4,
            attempt=2,
        )
        await nodes.ended("a")
        uuids = [device.uuid for device in (await nodes.registration()).devices]
    found = dict(line.split("=", 1) for line in nodes.output("a").decode().splitlines())
    gpus = f"{uuids[1]},{uuids[3]}"
    assert (
        found.items()
        >= {
            "CUDA_VISIBLE_DEVICES": gpus,
            "RANK": "5",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "10.0.0.7",
            "MASTER_PORT": "4711",
            "YARD_JOB_ID": "job-1",
            "YARD_JOB_NAME": "train",
            "YARD_PROJECT": "team",
            "YARD_ATTEMPT": "2",
            "YARD_ALLOCATION_ID": "a",
            "YARD_TASK_RANK": "5",
            "YARD_NODE": "n1",
            "YARD_GPU_UUIDS": gpus,
            "EPOCHS": "3",
        }.items()
    )
    assert "PYTEST_CURRENT_TEST" not in found, "the agent's own environment is not the task's"


async def test_a_gang_prepares_then_starts(nodes: AgentNodes) -> None:
    script = "echo $RANK $MASTER_ADDR:$MASTER_PORT"
    async with nodes.running():
        for rank in (0, 1):
            await nodes.prepare(f"g{rank}", "sh", "-c", script, devices=(rank,), task_rank=rank, world_size=2)
        first, second = [await nodes.fact(TaskReady, f"g{rank}") for rank in (0, 1)]
        assert (second.master_addr, second.master_port) == (None, None)
        assert first.master_addr == "127.0.0.1"
        assert first.master_port is not None
        report = await nodes.report()
        assert {(a.allocation_id, a.state) for a in report.allocations} == {("g0", "prepared"), ("g1", "prepared")}
        assert not (nodes.node_folder() / "output").exists(), "nothing runs yet"
        for rank in (0, 1):
            await nodes.start(
                f"g{rank}", "sh", "-c", script, seq=2, devices=(rank,), task_rank=rank, world_size=2,
                master_addr=first.master_addr, master_port=first.master_port,
            )  # fmt: skip
        for rank in (0, 1):
            await nodes.ended(f"g{rank}")
            assert nodes.kinds(f"g{rank}") == ["TaskReady", "TaskStarted", "TaskExited", "DevicesEmptied"]
            assert nodes.output(f"g{rank}") == f"{rank} 127.0.0.1:{first.master_port}\n".encode()


async def test_stop_gives_the_grace(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.02; done")
        await until(lambda: nodes.output("a") == b"ready\n")
        await nodes.stop("a", grace=20)
        assert end_of(await nodes.ended("a")) == ("stopped", "exit_code", 7, None)
    assert nodes.output("a").endswith(b"bye\n")


async def test_stop_ends_a_tree_that_ignores_sigterm(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "sh", "-c", SIGTERM_IGNORED_BY_ALL)
        await until(lambda: nodes.output("a") == b"ready\n")
        await nodes.stop("a", grace=0.1)
        assert end_of(await nodes.ended("a")) == ("stopped", "signal", None, signal.SIGKILL)
    assert nodes.processes() == set()


async def test_a_second_stop_shortens_the_grace(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "sh", "-c", SIGTERM_IGNORED_BY_ALL)
        await until(lambda: nodes.output("a") == b"ready\n")
        await nodes.stop("a", grace=3600)
        await nodes.stop("a", grace=0, seq=3)
        assert end_of(await nodes.ended("a")) == ("stopped", "signal", None, signal.SIGKILL)


@pytest.mark.parametrize("grace", [-1.0, 1e9])
async def test_a_grace_that_no_keeper_takes_is_brought_into_range(nodes: AgentNodes, grace: float) -> None:
    async with nodes.running():
        await nodes.start("a", "sleep", "1000")
        await nodes.started("a")
        await nodes.stop("a", grace=grace)
        assert (await nodes.ended("a")).outcome == "stopped"


async def test_stop_of_a_prepared_task(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.prepare("a", "touch", "ran")
        await nodes.stop("a", reason="gang_member_failed")
        assert end_of(await nodes.ended("a")) == ("stopped", "gang_member_failed", None, None)
        await nodes.start("a", "touch", "ran", seq=3)
        await _obeyed_all(nodes)
    assert nodes.kinds("a") == ["TaskReady", "TaskExited", "DevicesEmptied"]


async def test_stop_of_a_task_never_heard_of_also_stops_its_later_start(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.stop("a", reason="max_run_time")
        assert end_of(await nodes.ended("a")) == ("stopped", "max_run_time", None, None)
        await nodes.start("a", "true", seq=1)
        await nodes.start("a", "true", seq=3)
        await _obeyed_all(nodes)
    assert nodes.kinds("a") == ["TaskExited", "DevicesEmptied"]
    assert not (nodes.node_folder() / "output" / "a").exists()


async def test_stop_of_an_ended_task_changes_nothing(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "true")
        await nodes.ended("a")
        await nodes.stop("a")
        await _obeyed_all(nodes)
    assert nodes.kinds("a") == ["TaskStarted", "TaskExited", "DevicesEmptied"]


async def test_start_and_stop_in_one_batch(nodes: AgentNodes) -> None:
    """Neither is lost, whichever the keeper sees."""
    async with nodes.running():
        await nodes.registration()
    await nodes.start("a", "sleep", "1000")
    await nodes.stop("a", grace=0)
    async with nodes.running():
        assert (await nodes.ended("a")).outcome == "stopped"


async def test_an_unknown_reason_to_stop_is_a_cancellation(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.stop("a", reason="unknown_allocation")
        assert (await nodes.ended("a")).reason == "cancelled"


async def test_commands_count_once_and_only_forward(nodes: AgentNodes, tmp_path: Path) -> None:
    script = f"echo ran >> {tmp_path}/ran; sleep 1000"
    async with nodes.running():
        await nodes.start("a", "sh", "-c", script, seq=5)
        await nodes.started("a")
        await nodes.start("a", "sh", "-c", script, seq=5)
        await nodes.stop("a", seq=5, grace=0)
        await nodes.stop("a", seq=4, grace=0)
        await nodes.start("a", "sh", "-c", script, seq=6)
        await nodes.prepare("a", "sh", "-c", script, seq=7)
        await _obeyed_all(nodes)
        report = await nodes.report()
        assert [(a.allocation_id, a.command_seq, a.state) for a in report.allocations] == [("a", 7, "running")]
        await nodes.stop("a", seq=8, grace=0)
        await nodes.ended("a")
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert nodes.kinds("a") == ["TaskStarted", "TaskExited", "DevicesEmptied"]


async def test_commands_of_another_epoch_are_not_obeyed(nodes: AgentNodes) -> None:
    async with nodes.running():
        await nodes.start("a", "true", epoch="another/epoch")
        await _obeyed_all(nodes)
        assert (await nodes.report()).allocations == []
    assert nodes.kinds("a") == []


@pytest.mark.parametrize("step", ["start", "prepare"])
async def test_a_device_that_the_node_has_not_is_refused(nodes: AgentNodes, step: str) -> None:
    async with nodes.running():
        send = nodes.start if step == "start" else nodes.prepare
        await send("a", "true", device_uuids=["GPU-elsewhere"])
        end = await nodes.ended("a")
    assert end_of(end) == ("failed", "start_failed", None, None)
    assert end.detail == "no device GPU-elsewhere on this node"
    assert nodes.kinds("a") == ["TaskExited", "DevicesEmptied"]


@pytest.mark.parametrize("allocation_id", ["../../escape", "a/b", ".hidden", "", "a\nb", "x" * 200])
async def test_an_allocation_id_that_is_no_plain_name_touches_nothing(nodes: AgentNodes, allocation_id: str) -> None:
    async with nodes.running():
        await nodes.start(allocation_id, "true")
        await _obeyed_all(nodes)
    assert nodes.kinds(allocation_id) == []
    assert not (nodes.node_folder() / "work" / allocation_id).exists() or allocation_id in ("", "../../escape")
    assert not (nodes.folder / "agents" / "escape").exists()


async def _obeyed_all(nodes: AgentNodes) -> None:
    """Commands are obeyed in order, so the end of a later one tells that those before it were seen."""
    name = f"after-{len(nodes.told)}"
    await nodes.start(name, "true", devices=())
    await nodes.ended(name)
