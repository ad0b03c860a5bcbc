"""The examples are valid, and the gang of `train.yaml` really exchanges what it says, and notices when it does not."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from yard_events.job_document import JobDocument

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_examples_are_valid_documents(name: str) -> None:
    JobDocument.model_validate(yaml.safe_load((EXAMPLES / name).read_text()))


def gang(scripts: list[str]) -> list[subprocess.CompletedProcess[str]]:
    """Runs one process per script as the tasks of a gang, and gives how they ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PATH": os.environ["PATH"], "RANK": str(rank), "WORLD_SIZE": str(len(scripts)), "YARD_NODE": "n1",
                "CUDA_VISIBLE_DEVICES": f"GPU-{rank}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            },
        )
        for rank, script in enumerate(scripts)
    ]  # fmt: skip
    ended: list[subprocess.CompletedProcess[str]] = []
    for process in processes:
        out, err = process.communicate(timeout=40)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


@pytest.fixture
def script() -> str:
    document = JobDocument.model_validate(yaml.safe_load((EXAMPLES / "train.yaml").read_text()))
    assert document.run.command[0] == "python3"
    return document.run.command[-1]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_gets_the_sum(script: str, world: int) -> None:
    for rank, task in enumerate(gang([script] * world)):
        assert task.returncode == 0, task.stderr
        assert f"rank {rank} of {world}" in task.stdout
        assert f"rank {rank}: done" in task.stdout


def test_a_wrong_sum_fails_the_task(script: str) -> None:
    wrong = script.replace("total = [sum(column) for column", "total = [sum(column) + 1 for column")
    assert wrong != script
    first, second = gang([wrong, script])
    assert first.returncode != 0
    assert second.returncode != 0
    assert "expected" in second.stderr
