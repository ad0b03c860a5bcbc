"""What a node keeps of its tasks and for how long, and how much they may print."""

import os
import time
from pathlib import Path

import pytest

from support.agent_node import AgentNodes, until


def files_of(nodes: AgentNodes, folder: str) -> set[str]:
    path = nodes.node_folder() / folder
    return {entry.name for entry in path.iterdir()} if path.exists() else set()


async def test_old_tasks_go_with_their_files(nodes: AgentNodes, tmp_path: Path) -> None:
    nodes.change(keep_ended_days=0, keep_ended_newest=2, housekeeping_seconds=0.05)
    kept_elsewhere = tmp_path / "kept"
    kept_elsewhere.mkdir()
    (kept_elsewhere / "file").touch()
    script = f"ln -s {kept_elsewhere} link; mkdir -p cache/module; touch cache/module/file; chmod -R a-w cache"
    async with nodes.running():
        await nodes.start("runs", "sleep", "1000")
        for name in ("a", "b", "c", "d"):
            await nodes.start(name, "sh", "-c", script, devices=())
            await nodes.ended(name)
        await until(lambda: files_of(nodes, "output") == files_of(nodes, "work") == {"runs", "c", "d"})
        async with nodes.http() as http:
            assert (await http.get("/v1/nodes/n1/allocations/a/log")).status_code == 404
            assert (await http.get("/v1/nodes/n1/allocations/d/log")).status_code == 200
        await nodes.stop("runs", grace=0)
        await nodes.ended("runs")
    assert (kept_elsewhere / "file").exists(), "a link is not followed"


async def test_what_a_lost_journal_left_goes_when_it_is_old(nodes: AgentNodes) -> None:
    nodes.change(keep_ended_days=1)
    async with nodes.running():
        await nodes.start("known", "true")
        await nodes.ended("known")
    week_ago = time.time() - 7 * 86_400
    for folder in ("output", "work"):
        for name in ("old", "new"):
            path = nodes.node_folder() / folder / name
            path.touch()
        os.utime(nodes.node_folder() / folder / "old", (week_ago, week_ago))
        os.utime(nodes.node_folder() / folder / "known", (week_ago, week_ago))
    async with nodes.running():
        await until(lambda: files_of(nodes, "output") == files_of(nodes, "work") == {"new", "known"})


async def test_a_task_that_prints_too_much_is_stopped_and_says_so(nodes: AgentNodes) -> None:
    nodes.change(max_output_bytes=100_000, report_seconds=0.05)
    async with nodes.running():
        await nodes.start("quiet", "sh", "-c", "head -c 100000 /dev/zero; sleep 1000", devices=(1,))
        await nodes.start("a", "yes")
        end = await nodes.ended("a")
        assert (end.outcome, end.reason) == ("failed", "output_limit")
        assert end.detail == "it printed more than 100000 bytes"
        await nodes.report()
        assert nodes.kinds("quiet") == ["TaskStarted"]
        await nodes.stop("quiet", grace=0)
        assert (await nodes.ended("quiet")).outcome == "stopped"


async def test_the_limit_also_holds_for_a_task_that_takes_its_time_to_stop(nodes: AgentNodes) -> None:
    nodes.change(report_seconds=0.05)
    async with nodes.running():
        await nodes.start("a", "sh", "-c", "trap '' TERM; yes")
        await nodes.started("a")
        await nodes.stop("a", grace=3600)
        await nodes.report()
    nodes.change(max_output_bytes=100_000)
    async with nodes.running():
        end = await nodes.ended("a")
        assert (end.outcome, end.reason) == ("stopped", "signal"), "why it was first asked to stop is why it ended"


@pytest.mark.parametrize("name", ["../n1", "a/b", "", "N1", "x" * 100])
def test_a_nodes_name_is_a_name(nodes: AgentNodes, name: str) -> None:
    nodes.nodes = [{"name": name, "devices": "1xL4-24GB"}]
    with pytest.raises(ValueError, match="name"):
        nodes.settings()


def test_two_nodes_of_one_name_are_refused(nodes: AgentNodes) -> None:
    nodes.nodes *= 2
    with pytest.raises(ValueError, match="each name once"):
        nodes.settings()
