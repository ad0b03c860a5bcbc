"""Which silence makes a node suspect or lost. Times are seconds after the start; the limits are 15, 60 and 30 s."""

from datetime import UTC, datetime, timedelta

import pytest

from yard_domain.states import NodeState
from yard_inventory.liveness import Contact, Limits, Verdict, Watch, judge

START = datetime(2026, 3, 1, tzinfo=UTC)
LIMITS = Limits(timedelta(seconds=15), timedelta(seconds=60), timedelta(seconds=30))
READY, SUSPECT, LOST = NodeState.READY, NodeState.SUSPECT, NodeState.LOST


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


def watch(since: float = 0, frozen: float | None = None, grace: float | None = None) -> Watch:
    return Watch(second(since), None if frozen is None else second(frozen), None if grace is None else second(grace))


def look(now: float, *nodes: tuple[NodeState, float], over: Watch | None = None) -> Verdict:
    """`nodes`: (state, last contact) of n0, n1, …"""
    contacts = [Contact(f"n{number}", state, second(heard)) for number, (state, heard) in enumerate(nodes)]
    return judge(over or watch(), contacts, second(now), LIMITS)


def looks_again(verdict: Verdict) -> float | None:
    return None if verdict.next_look is None else (verdict.next_look - START).total_seconds()


@pytest.mark.parametrize(
    ("now", "nodes", "changes", "next_look"),
    [
        # n0 is always heard; the question is n1
        (14.9, [(READY, 14), (READY, 0)], {}, 15),
        (15.0, [(READY, 14), (READY, 0)], {"n1": SUSPECT}, 29),
        (20.0, [(READY, 19), (SUSPECT, 0)], {}, 34),
        (59.9, [(READY, 59), (SUSPECT, 0)], {}, 60),
        (60.0, [(READY, 59), (SUSPECT, 0)], {"n1": LOST}, 74),
        (99.0, [(READY, 98), (READY, 0)], {"n1": LOST}, 113),
        (99.0, [(READY, 98), (LOST, 0)], {}, 113),
        (10.0, [(LOST, 0), (LOST, 0)], {}, None),
        (10.0, [], {}, None),
    ],
)
def test_a_silent_node_becomes_suspect_then_lost(now, nodes, changes, next_look):
    verdict = look(now, *nodes)
    assert verdict.changes == changes
    assert looks_again(verdict) == next_look
    assert verdict.watch.frozen_since is None


def test_when_all_nodes_fall_silent_at_once_the_control_plane_is_the_suspect():
    frozen = look(15, (READY, 0), (READY, 0))
    assert frozen.changes == {"n0": SUSPECT, "n1": SUSPECT}
    assert frozen.watch.frozen_since == second(15)
    assert frozen.next_look is None, "time alone proves nothing more"

    much_later = look(100_000, (SUSPECT, 0), (SUSPECT, 0), over=frozen.watch)
    assert much_later.changes == {}
    assert much_later.watch == frozen.watch


def test_the_first_contact_ends_the_freeze_and_starts_the_grace():
    thawed = look(500, (READY, 500), (SUSPECT, 0), over=watch(frozen=15))
    assert thawed.watch == watch(grace=530)
    assert thawed.changes == {}
    assert looks_again(thawed) == 515

    assert look(529, (READY, 528), (SUSPECT, 0), over=thawed.watch).changes == {}
    assert look(530, (READY, 528), (SUSPECT, 0), over=thawed.watch).changes == {"n1": LOST}


def test_a_restart_of_inventory_does_not_end_the_freeze():
    restarted = look(500, (SUSPECT, 0), (SUSPECT, 0), over=watch(since=500, frozen=15))
    assert restarted.watch.frozen_since == second(15)
    assert restarted.changes == {}
    assert look(600, (SUSPECT, 0), (SUSPECT, 0), over=restarted.watch).changes == {}


def test_silence_counts_from_when_somebody_listened():
    over = watch(since=1000)
    assert look(1001, (READY, 1000), (READY, 0), over=over).changes == {}
    assert look(1015, (READY, 1014), (READY, 0), over=over).changes == {"n1": SUSPECT}
    assert look(1059, (READY, 1058), (SUSPECT, 0), over=over).changes == {}
    assert look(1060, (READY, 1058), (SUSPECT, 0), over=over).changes == {"n1": LOST}


def test_listening_again_does_not_make_a_suspect_ready():
    verdict = look(1001, (READY, 1000), (SUSPECT, 0), over=watch(since=1000))
    assert verdict.changes == {}
    assert looks_again(verdict) == 1015


def test_a_single_node_is_judged_by_its_own_silence():
    assert look(15, (READY, 0)).changes == {"n0": SUSPECT}
    alone = look(60, (SUSPECT, 0))
    assert alone.changes == {"n0": LOST}
    assert alone.watch.frozen_since is None


def test_nodes_lost_before_do_not_count_as_silent_with_the_rest():
    """Else a cluster of one live node and many long gone ones would freeze."""
    assert look(60, (SUSPECT, 0), (LOST, -9000), (LOST, -9000)).changes == {"n0": LOST}
