"""Which states of nodes matter to jobs that no node could hold."""

from types import SimpleNamespace
from typing import Any

import pytest

from support.admission import node_state
from yard_admission.fleet import fold, hardware_of
from yard_events.types import InventoryNode


def known(node: InventoryNode, log_offset: int = 5, *, schedulable: bool = True) -> dict[str, Any]:
    return {node.node: SimpleNamespace(hardware=hardware_of(node), schedulable=schedulable, log_offset=log_offset)}


CASES: list[Any] = [
    pytest.param({}, [(6, node_state())], True, id="new node"),
    pytest.param(known(node_state()), [(6, node_state())], False, id="nothing new"),
    pytest.param(known(node_state()), [(6, node_state(generation=2))], True, id="new hardware"),
    pytest.param(known(node_state()), [(5, node_state(generation=2))], False, id="delivered again"),
    pytest.param(known(node_state()), [(6, node_state(cordoned=True))], False, id="cordoned"),
    pytest.param(known(node_state(), schedulable=False), [(6, node_state())], True, id="opened"),
    pytest.param(
        known(node_state()), [(6, node_state(state="lost")), (7, node_state())], True, id="closed and opened in a batch"
    ),
    pytest.param(
        known(node_state()), [(6, node_state(cpus=9.0)), (7, node_state())], True, id="changed and changed back"
    ),
]


@pytest.mark.parametrize(("before", "states", "better"), CASES)
def test_what_may_fit_now(before: dict[str, Any], states: list[tuple[int, InventoryNode]], better: bool) -> None:
    assert fold(states, before)[1] is better


def test_the_order_of_devices_does_not_matter() -> None:
    devices = [{"uuid": f"G{i}", "index": i, "model": "m", "memory_bytes": 1} for i in range(2)]
    assert hardware_of(node_state(devices=devices)) == hardware_of(node_state(devices=devices[::-1]))


def test_the_newest_of_each_node_is_stored() -> None:
    rows, _ = fold([(6, node_state("n1")), (7, node_state("n2", cordoned=True)), (9, node_state("n1"))], {})
    assert [(row["name"], row["schedulable"], row["log_offset"]) for row in rows] == [("n1", True, 9), ("n2", False, 7)]
