"""Why an attempt waits: the most lasting cause first, and hopeless only if no end of others and no repair helps."""

import pytest

from support.engine import GIB, NodeBuilder, gang, node, plan, reason, task
from yard_engine.snapshot import Shape


@pytest.mark.parametrize(
    ("case", "nodes", "shape", "expected"),
    [
        ("no nodes", [], task(), "no_nodes!"),
        ("no such model", [node("n1").gpus(8)], task(models="B200"), "wrong_model!"),
        ("more devices than a node has", [node("n1").gpus(8), node("n2").gpus(8)], task(gpus=9), "too_large!"),
        ("more tasks than the pool holds", [node("n1").gpus(8)], gang(9), "too_large!"),
        (
            "more of a model than there is",
            [node("n1").gpus(4).gpus(4, model="A100")],
            gang(5, models="A100"),
            "too_large!",
        ),
        ("more CPU than a node has", [node("n1").gpus(8).cpus(8)], task(cpus=9), "too_large!"),
        ("more memory than a node has", [node("n1").gpus(8).memory(GIB)], task(memory=2 * GIB), "too_large!"),
        ("too large also while all are silent", [node("n1").gpus(8).silent()], task(gpus=9), "too_large!"),
        ("silent", [node("n1").gpus(8).silent()], task(), "unhealthy"),
        (
            "enough only with the silent one",
            [node("n1").gpus(8).silent(), node("n2").gpus(4)],
            task(gpus=8),
            "unhealthy",
        ),
        ("sick devices", [node("n1").gpus(8, sick=1)], task(gpus=8), "unhealthy"),
        ("silent before cordoned", [node("n1").gpus(8).silent().cordoned()], task(), "unhealthy"),
        ("cordoned", [node("n1").gpus(8).cordoned()], task(), "cordoned"),
        (
            "enough only with the cordoned one",
            [node("n1").gpus(8).cordoned(), node("n2").gpus(4)],
            task(gpus=8),
            "cordoned",
        ),
        ("cordoned before taken", [node("n1").gpus(8, free=0).cordoned()], task(), "cordoned"),
        ("all taken", [node("n1").gpus(8, free=0)], task(), "insufficient_gpu"),
        ("some taken", [node("n1").gpus(8, free=3)], task(gpus=4), "insufficient_gpu"),
        (
            "free, but scattered",
            [node("n1").gpus(8, free=3), node("n2").gpus(8, free=3)],
            task(gpus=4),
            "insufficient_gpu",
        ),
        ("CPU taken", [node("n1").gpus(8).cpus(8, free=1)], task(cpus=2), "insufficient_cpu"),
        ("memory taken", [node("n1").gpus(8).memory(8 * GIB, free=GIB)], task(memory=2 * GIB), "insufficient_memory"),
        ("devices before CPU", [node("n1").gpus(8, free=0).cpus(8, free=0)], task(cpus=2), "insufficient_gpu"),
        (
            "CPU here, memory there",
            [node("n1").gpus(8).cpus(8, free=1), node("n2").gpus(8).memory(8 * GIB, free=GIB)],
            task(cpus=2, memory=2 * GIB),
            "insufficient_gpu",
        ),
        ("fits", [node("n1").gpus(8)], task(), None),
    ],
)
def test_reason(case: str, nodes: list[NodeBuilder], shape: Shape, expected: str | None) -> None:
    assert reason(plan(nodes, shape)) == expected, case


def test_behind_an_earlier_one() -> None:
    made = plan([node("n1").gpus(8, free=4)], task(gpus=8), task(gpus=2))
    assert (reason(made, "a0"), reason(made, "a1")) == ("insufficient_gpu", "behind_earlier")


def test_the_same_shape_gets_the_same_answer_without_another_search() -> None:
    made = plan([node("n1").gpus(8, free=4)], task(gpus=8), task(gpus=8), task(gpus=8, cpus=1))
    assert made.blocked[0].detail == made.blocked[1].detail
    assert [b.attempt_id for b in made.blocked] == ["a0", "a1", "a2"]
    # The first holds the node; the second shares its answer and must not be told that it waits behind itself.
    assert reason(made, "a1") == "insufficient_gpu"


def test_a_hopeless_answer_is_shared_too() -> None:
    made = plan([node("n1").gpus(8)], task(gpus=9), task(gpus=9), task())
    assert (reason(made, "a0"), reason(made, "a1"), reason(made, "a2")) == ("too_large!", "too_large!", None)


@pytest.mark.parametrize(
    ("nodes", "shape", "says"),
    [
        ([node("n1").gpus(8)], task(models="B200 A100"), "asked for A100, B200; the pool has H100"),
        ([node("n1").gpus(8)], gang(9), "9 tasks asked for; the empty pool holds 8 like it"),
        (
            [node("n1").gpus(8).silent(), node("n2").gpus(8, sick=2)],
            task(gpus=7),
            "1 of 2 nodes do not answer; 2 devices of the others are not healthy",
        ),
        ([node("n1").gpus(8).cordoned(), node("n2").gpus(2)], task(gpus=4), "1 of 2 nodes are cordoned"),
        ([node("n1").gpus(8, free=1), node("n2").gpus(8, free=2)], gang(2, gpus=2), "2 × 2 GPUs asked for; 3 free"),
        ([node("n1").gpus(8).cpus(8, free=1)], task(cpus=2.5), "2.5 CPU cores asked for beside the GPUs of each task"),
        (
            [node("n1").gpus(8).memory(8 * GIB, free=GIB)],
            task(memory=2 * GIB),
            "2 GiB asked for beside the GPUs of each task",
        ),
    ],
)
def test_the_detail_gives_figures(nodes: list[NodeBuilder], shape: Shape, says: str) -> None:
    assert plan(nodes, shape).blocked[0].detail == says
