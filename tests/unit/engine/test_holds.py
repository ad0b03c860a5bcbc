"""Holds: large work does not starve behind small work, and small work does not wait where it need not."""

import pytest

from support.engine import NodeBuilder, Rounds, gang, node, places, plan, reason, task
from yard_engine.snapshot import Shape


@pytest.mark.parametrize(
    ("case", "nodes", "first", "second", "expected"),
    [
        ("the only node is held", [node("n1").gpus(8, free=4)], task(gpus=8), task(), None),
        (
            "the rest of the pool is open",
            [node("n1").gpus(8, free=6), node("n2").gpus(8, free=4)],
            task(gpus=8),
            task(),
            "n2",
        ),
        (
            "no more of the nearest one, whatever is free on it",
            [node("n1").gpus(8, free=4), node("n2").gpus(8, free=6)],
            task(gpus=8),
            task(gpus=5),
            None,
        ),
        (
            "nor of any that a gang needs",
            [node("n1").gpus(8, free=7), node("n2").gpus(8, free=6), node("n3").gpus(8, free=5)],
            gang(2, gpus=8),
            task(gpus=6),
            None,
        ),
        (
            "the nearest to fitting is held",
            [node("n1").gpus(8, free=4), node("n2").gpus(8, free=6)],
            task(gpus=8),
            task(),
            "n1",
        ),
        (
            "a gang holds as many nodes as it needs",
            [node("n1").gpus(8, free=7), node("n2").gpus(8, free=6), node("n3").gpus(8, free=5)],
            gang(2, gpus=8),
            task(),
            "n3",
        ),
        (
            "a free node counts as nearer",
            [node("n1").gpus(8), node("n2").gpus(8, free=7), node("n3").gpus(8, free=6)],
            gang(2, gpus=8),
            task(),
            "n3",
        ),
        (
            "held devices of other models do not make a node farther",
            [node("n1").gpus(4, free=0, model="A100").gpus(4, free=3), node("n2").gpus(4, free=2)],
            task(gpus=4, models="H100"),
            task(),
            "n2",
        ),
        (
            "a node with a sick device is not worth holding",
            [node("n1").gpus(8, free=7, sick=1), node("n2").gpus(8, free=1)],
            task(gpus=8),
            task(),
            "n1",
        ),
        (
            "nor a node that is too small",
            [node("n1").gpus(4, free=3), node("n2").gpus(8, free=1)],
            task(gpus=8),
            task(),
            "n1",
        ),
        (
            "what only a cordoned node could hold holds nothing",
            [node("n1").gpus(8).cordoned(), node("n2").gpus(4)],
            task(gpus=8),
            task(),
            "n2",
        ),
        (
            "what lacks one cordoned node holds nothing",
            [node("n1").gpus(8, free=0).cordoned(), node("n2").gpus(8, free=7)],
            gang(2, gpus=8),
            task(),
            "n2",
        ),
        (
            "what waits for a silent node holds nothing",
            [node("n1").gpus(8).silent(), node("n2").gpus(4)],
            task(gpus=8),
            task(),
            "n2",
        ),
        ("the hopeless hold nothing", [node("n1").gpus(8)], task(gpus=9), task(), "n1"),
    ],
)
def test_where_the_next_may_go(
    case: str, nodes: list[NodeBuilder], first: Shape, second: Shape, expected: str | None
) -> None:
    made = plan(nodes, first, second)
    assert places(made, "a0") is None, case
    assert places(made, "a1") == expected, case
    if expected is None:
        assert reason(made, "a1") == "behind_earlier", case


def test_each_blocked_shape_holds_what_it_needs() -> None:
    nodes = [node("n1").gpus(8, free=6), node("n2").gpus(8, free=5), node("n3").gpus(8, free=4)]
    made = plan(nodes, task(gpus=8), task(gpus=7), task(gpus=1))
    assert [reason(made, f"a{i}") for i in range(2)] == ["insufficient_gpu"] * 2
    assert places(made, "a2") == "n3"


def test_what_the_open_nodes_cannot_hold_waits_its_turn_without_holding() -> None:
    """The gang needs both nodes; one is held for the first. Holding the other would idle it until nobody knows when."""
    made = plan([node("n1").gpus(8, free=7), node("n2").gpus(8, free=6)], task(gpus=8), gang(2, gpus=8), task())
    assert places(made, "a2") == "n2"


def test_what_is_behind_may_not_use_a_hold_of_its_own_shape() -> None:
    made = plan([node("n1").gpus(8, free=4)], task(gpus=8), task(gpus=8))
    assert places(made, "a0") is places(made, "a1") is None


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_large_job_is_not_starved_by_a_stream_of_small_ones(nodes: int) -> None:
    """Small jobs arrive faster than they end; the large one waits at most until those that ran when it came have
    ended, and the rest of the pool stays open meanwhile."""
    pool = Rounds.of(*(node(f"n{i}").gpus(8) for i in range(nodes)))
    longest, number = 7, 0

    def one_round() -> list[str]:
        nonlocal number
        number += 3 * nodes
        arrivals = [(f"small-{number - i}", task()) for i in range(3 * nodes)]
        return pool.round(arrivals, lambda name: 2 + int(name.rpartition("-")[2]) * 5 % (longest - 1))

    for _ in range(20):
        one_round()
    assert sum(d.free for n in pool.nodes.values() for d in n.devices) == 0
    pool.pending.insert(0, ("large-0", task(gpus=8)))
    meanwhile = 0
    for _ in range(longest + 1):
        placed = one_round()
        if "large-0" in placed:
            break
        meanwhile += len(placed)
    else:
        raise AssertionError("the large job starved")
    assert (meanwhile > 0) == (nodes > 1)


def test_a_gang_over_nodes_is_not_starved_either() -> None:
    pool = Rounds.of(*(node(f"n{i}").gpus(4) for i in range(4)))
    for round_no in range(12):
        pool.round([(f"s{round_no}-{i}", task()) for i in range(5)], lambda _: 6)
    pool.pending.insert(0, ("gang", gang(3, gpus=4)))
    for round_no in range(12, 20):
        if "gang" in pool.round([(f"s{round_no}-{i}", task()) for i in range(5)], lambda _: 6):
            return
    raise AssertionError("the gang starved")


def test_streams_of_two_large_shapes_are_both_served() -> None:
    """By age: the older of two blocked ones is never overtaken for ever by younger ones of the other shape."""
    pool = Rounds.of(*(node(f"n{i}").gpus(8) for i in range(2)))
    came: dict[str, int] = {}
    waits: list[int] = []
    for now in range(120):
        arrivals = [(f"w{now}", task(gpus=8))] if now % 5 == 0 else []
        arrivals += [(f"g{now}", gang(2, gpus=8))] if now % 11 == 0 else []
        arrivals += [(f"s{now}", task())]
        came |= {name: now for name, _ in arrivals}
        waits += [now - came[name] for name in pool.round(arrivals, lambda _: 2)]
    assert max(waits) <= 25
    assert all(now - came[name] <= 25 for name, _ in pool.pending)
