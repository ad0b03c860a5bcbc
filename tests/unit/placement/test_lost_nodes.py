"""Nodes that fall silent, come back, come back rebooted, or come back without their journal."""

from datetime import timedelta

import pytest

from support.lifecycle import NOW, Life, Steps, run

SINGLE: dict[str, Steps] = {
    "lost and back": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
        ("exit0 0", ["EXITED succeeded exit_code 0"], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "suspect is not lost": [("started 0", ["STARTED"], "running"), ("suspect n1", [], "running")],
    "lost and suspect again is back": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("suspect n1", ["RECOVERED a.t0"], "running"),
    ],
    "lost before it started": [
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "starting"),
        ("started 0", ["STARTED"], "running"),
    ],
    "started while it was lost": [
        ("lost n1", ["LOST a.t0"], "lost"),
        ("started 0", ["STARTED"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
    ],
    "it ended meanwhile, and its agent says so before inventory has heard of it": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("exit0 0, emptied 0", ["EXITED succeeded exit_code 0", "released a.t0"], "ended"),
        ("back n1", [], "ended"),
    ],
    "it ended meanwhile, inventory first": [
        ("started 0, lost n1", ["LOST a.t0", "STARTED"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
        ("exit1 0, emptied 0", ["EXITED failed exit_code 1", "released a.t0"], "ended"),
    ],
    "lost and rebooted": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("reboot n1", ["EXITED lost node_rebooted", "released a.t0"], "ended"),
    ],
    "rebooted, and inventory knows first": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("backrebooted n1", [], "lost"),
        ("reboot n1", ["EXITED lost node_rebooted", "released a.t0"], "ended"),
    ],
    "rebooted so quickly that nobody missed it": [
        ("started 0", ["STARTED"], "running"),
        ("reboot n1", ["EXITED lost node_rebooted", "released a.t0"], "ended"),
    ],
    "the agent lost its journal": [
        ("started 0", ["STARTED"], "running"),
        ("newjournal n1", ["EXITED lost agent_state_lost", "released a.t0"], "ended"),
    ],
    "rebooted after it had exited, before it was empty": [
        ("started 0, exit0 0", ["STARTED", "EXITED succeeded exit_code 0"], "ended"),
        ("reboot n1", ["released a.t0"], "ended"),
    ],
    "a stop while it is lost waits for the node": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("stop", ["stop a.t0 cancelled 30"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "stopping"),
        ("stopped 0", ["EXITED stopped cancelled"], "ended"),
    ],
    "lost while it is being stopped": [
        ("stop", ["stop a.t0 cancelled 30"], "stopping"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "stopping"),
    ],
    "lost twice": [
        ("started 0", ["STARTED"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
    ],
    "what has exited is not lost": [
        ("started 0, exit0 0", ["STARTED", "EXITED succeeded exit_code 0"], "ended"),
        ("lost n1", [], "ended"),
    ],
}


@pytest.mark.parametrize("case", SINGLE)
def test_single_task(case: str) -> None:
    run(Life(1), SINGLE[case])


GANG: dict[str, Steps] = {
    "one node lost and back": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("back n2", ["RECOVERED a.t1"], "running"),
    ],
    "one after the other": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n2", ["RECOVERED a.t1"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "running"),
    ],
    "lost while preparing: it starts when all are back": [
        ("ready 0, lost n2", ["LOST a.t1"], "lost"),
        ("ready 1", [], "lost"),
        ("back n2", ["RECOVERED a.t1", "start a.t0", "start a.t1"], "starting"),
    ],
    "lost while starting": [
        ("ready 0 1", ["start a.t0", "start a.t1"], "starting"),
        ("lost n1", ["LOST a.t0"], "lost"),
        ("back n1", ["RECOVERED a.t0"], "starting"),
    ],
    "the deadline passes while one is lost": [
        ("ready 0, lost n2", ["LOST a.t1"], "lost"),
        ("deadline", ["stop a.t0 start_deadline 7", "stop a.t1 start_deadline 7"], "lost"),
        ("stopped 0", [], "lost"),
        ("back n2", ["RECOVERED a.t1"], "stopping"),
        ("stopped 1", ["EXITED stopped start_deadline"], "ended"),
    ],
    "the lost one turns out to have ended: the other goes on": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("exit0 1", ["RECOVERED a.t1"], "running"),
        ("emptied 1", ["released a.t1"], "running"),
        ("exit0 0", ["EXITED succeeded exit_code 0"], "ended"),
    ],
    "and is empty already: released before it would go on the meter again": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("exit0 1, emptied 1", ["released a.t1", "RECOVERED a.t1"], "running"),
    ],
    "the lost one rebooted: the other is stopped": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("reboot n2", ["released a.t1", "RECOVERED a.t1", "stop a.t0 gang_member_failed 7"], "stopping"),
        ("stopped 0, emptied 0", ["EXITED lost node_rebooted", "released a.t0"], "ended"),
    ],
    "one of two lost ones rebooted: the other still is lost": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n1, lost n2", ["LOST a.t0", "LOST a.t1"], "lost"),
        ("reboot n1", ["released a.t0", "RECOVERED a.t0", "stop a.t1 gang_member_failed 7"], "lost"),
        ("back n2", ["RECOVERED a.t1"], "stopping"),
        ("stopped 1, emptied 1", ["EXITED lost node_rebooted", "released a.t1"], "ended"),
    ],
    "a member failed while another one is lost": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("lost n2", ["LOST a.t1"], "lost"),
        ("exit1 0", ["stop a.t1 gang_member_failed 7"], "lost"),
        ("back n2, stopped 1", ["EXITED failed exit_code 1"], "ended"),
    ],
}


@pytest.mark.parametrize("case", GANG)
def test_gang(case: str) -> None:
    run(Life(2), GANG[case])


def test_tasks_of_one_node_are_lost_in_one_decision() -> None:
    life = Life(3, nodes="n1 n1 n2")
    life.tell("ready 0 1 2", "started 0 1 2")
    assert life.tell("lost n1") == ["LOST a.t0 a.t1"]


def test_each_node_is_billed_up_to_its_own_last_contact() -> None:
    life = Life(2)
    life.tell("ready 0 1", "started 0 1", "wait")
    life.tell("back n2", "wait", "wait")
    life.tell("lost n1", "lost n2")
    contacts = {e.allocation_ids[0]: e.last_contact for e in life.events[-2:]}
    assert contacts == {"a.t0": NOW, "a.t1": NOW + timedelta(minutes=1)}
    assert [life.task(rank).lost_since for rank in (0, 1)] == [NOW, NOW + timedelta(minutes=1)]


@pytest.mark.parametrize(
    ("contact", "since"),
    [
        (timedelta(seconds=30), timedelta(seconds=30)),
        (timedelta(seconds=-30), timedelta(0)),  # before the grant: another service's clock
        (timedelta(seconds=600), timedelta(seconds=60)),  # after the decision
    ],
)
def test_lost_time_begins_within_the_billed_span(contact: timedelta, since: timedelta) -> None:
    life = Life(1)
    life.tell("started 0")
    life._wait()
    life._node("n1", last_contact=NOW + contact)
    life.tell("lost n1")
    [lost] = life.events[-1:]
    assert life.task(0).lost_since == NOW + since
    assert lost.last_contact < lost.ledger_time


def test_a_last_contact_before_the_return_does_not_count_the_time_before_it_twice() -> None:
    """Placement heard late of the return: the node's last contact, as inventory has it, is before it."""
    life = Life(1)
    life.tell("started 0", "lost n1")
    life.tell("back n1")
    contact = life.nodes["n1"].last_contact
    assert contact == NOW
    life.tell("wait", "lost n1")
    life.tell("wait", "exit0 0", "emptied 0")
    task = life.task(0)
    billed = task.released_at - task.granted_at - timedelta(microseconds=task.lost_micros)
    assert timedelta(0) <= billed <= timedelta(milliseconds=1)
