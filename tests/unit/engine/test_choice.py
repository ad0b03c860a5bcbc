"""Where a gang goes: one node if any holds all of it, else the fewest, and always the fullest that fits."""

import pytest

from support.engine import GIB, NodeBuilder, devices, gang, node, places, plan, task
from yard_engine.snapshot import Shape


@pytest.mark.parametrize(
    ("case", "nodes", "shape", "expected"),
    [
        ("the only one", [node("n1").gpus(8)], task(), "n1"),
        ("the fullest that fits", [node("n1").gpus(8, free=5), node("n2").gpus(8, free=2)], task(gpus=2), "n2"),
        ("not the one that is too full", [node("n1").gpus(8, free=5), node("n2").gpus(8, free=1)], task(gpus=2), "n1"),
        ("equally full: by name", [node("n2").gpus(8, free=2), node("n1").gpus(8, free=2)], task(), "n1"),
        (
            "a gang on one node, though two fuller ones would do",
            [node("n1").gpus(8, free=1), node("n2").gpus(8, free=1), node("n3").gpus(8)],
            gang(2),
            "n3 n3",
        ),
        (
            "the fewest nodes",
            [node("n1").gpus(8, free=2), node("n2").gpus(8, free=5), node("n3").gpus(8, free=3)],
            gang(8),
            "n2 n2 n2 n2 n2 n3 n3 n3",
        ),
        (
            "the rest on the fullest that suffices",
            [node("n1").gpus(8, free=6), node("n2").gpus(8, free=4), node("n3").gpus(8, free=2)],
            gang(8),
            "n1 n1 n1 n1 n1 n1 n3 n3",
        ),
        (
            "tasks of several devices do not cross nodes",
            [node("n1").gpus(8, free=3), node("n2").gpus(8, free=3)],
            gang(2, gpus=2),
            "n1 n2",
        ),
        ("all or nothing", [node("n1").gpus(8, free=3), node("n2").gpus(8, free=3)], gang(4, gpus=2), None),
        ("nothing on a silent node", [node("n1").gpus(8).silent(), node("n2").gpus(8)], task(), "n2"),
        ("nothing on a cordoned node", [node("n1").gpus(8).cordoned(), node("n2").gpus(8)], task(), "n2"),
        ("nothing on sick devices", [node("n1").gpus(8, sick=7), node("n2").gpus(8)], task(gpus=2), "n2"),
    ],
)
def test_which_nodes(case: str, nodes: list[NodeBuilder], shape: Shape, expected: str | None) -> None:
    assert places(plan(nodes, shape)) == expected, case


@pytest.mark.parametrize(
    ("case", "nodes", "shape", "expected"),
    [
        ("CPU beside the devices", [node("n1").gpus(8).cpus(64, free=3), node("n2").gpus(8)], task(cpus=4), "n2"),
        ("memory beside them", [node("n1").gpus(8).memory(9 * GIB), node("n2").gpus(8)], task(memory=10 * GIB), "n2"),
        (
            "CPU limits the tasks per node",
            [node("n1").gpus(8).cpus(8), node("n2").gpus(8).cpus(8)],
            gang(4, cpus=4),
            "n1 n1 n2 n2",
        ),
        ("exactly all CPU", [node("n1").gpus(8).cpus(8)], gang(2, cpus=4), "n1 n1"),
        ("tenths add up to a whole", [node("n1").gpus(10).cpus(1)], gang(10, cpus=0.1), " ".join(["n1"] * 10)),
        ("no request is not limited by an overbooked node", [node("n1").gpus(8).cpus(8, free=-2)], task(), "n1"),
        ("a request is", [node("n1").gpus(8).cpus(8, free=-2)], task(cpus=0.5), None),
    ],
)
def test_cpu_and_memory(case: str, nodes: list[NodeBuilder], shape: Shape, expected: str | None) -> None:
    assert places(plan(nodes, shape)) == expected, case


def test_devices_are_taken_lowest_index_first() -> None:
    assert devices(plan([node("n1").gpus(4)], task(gpus=2), task()), "a0") == [("n1/0", "n1/1")]
    assert devices(plan([node("n1").gpus(4)], task(gpus=2), task()), "a1") == [("n1/2",)]


MIXED = [node("n1").gpus(3, model="A100").gpus(3, model="H100")]


@pytest.mark.parametrize(
    ("case", "shape", "expected"),
    [
        ("one task, one model", task(gpus=3), [("n1/0", "n1/1", "n1/2")]),
        ("four of six, but of two models", task(gpus=4), []),
        ("the model asked for", task(gpus=2, models="H100"), [("n1/3", "n1/4")]),
        (
            "two models will do, one task has one",
            gang(2, gpus=3, models="A100 H100"),
            [("n1/0", "n1/1", "n1/2"), ("n1/3", "n1/4", "n1/5")],
        ),
        ("tasks of a gang may differ", gang(2, gpus=2), [("n1/0", "n1/1"), ("n1/3", "n1/4")]),
        ("a model that is not there", task(models="B200"), []),
    ],
)
def test_models_are_not_mixed_in_a_task(case: str, shape: Shape, expected: list[tuple[str, ...]]) -> None:
    assert devices(plan(MIXED, shape)) == expected, case


def test_the_model_with_the_fewest_left_is_taken_first() -> None:
    scarce = [node("n1").gpus(4, model="A100").gpus(2, model="H100")]
    assert devices(plan(scarce, task(gpus=2))) == [("n1/4", "n1/5")]


def test_the_pending_set_is_served_in_its_order() -> None:
    made = plan([node("n1").gpus(4)], task(gpus=2), task(gpus=2), task(gpus=2))
    assert [p.attempt_id for p in made.placed] == ["a0", "a1"]
    assert [b.attempt_id for b in made.blocked] == ["a2"]
