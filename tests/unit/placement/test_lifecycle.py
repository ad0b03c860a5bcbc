"""Known facts → what placement decides and commands. Each step is one batch, each batch one look of the cycle."""

import pytest

from support.lifecycle import Life, Steps, run

SINGLE: dict[str, Steps] = {
    "runs, exits, empties": [
        ("", [], "starting"),
        ("started 0", ["STARTED"], "running"),
        ("exit0 0", ["EXITED succeeded exit_code 0"], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "all in one batch": [
        ("started 0, exit0 0, emptied 0", ["STARTED", "EXITED succeeded exit_code 0", "released a.t0"], "ended"),
    ],
    "fails": [
        ("started 0", ["STARTED"], "running"),
        ("exit1 0", ["EXITED failed exit_code 1"], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "never started": [("nofile 0, emptied 0", ["EXITED failed command_not_found", "released a.t0"], "ended")],
    "stopped while starting": [
        ("stop", ["stop a.t0 cancelled 30"], "stopping"),
        ("stopped 0, emptied 0", ["EXITED stopped cancelled", "released a.t0"], "ended"),
    ],
    "stopped while starting, but it was quicker": [
        ("stop", ["stop a.t0 cancelled 30"], "stopping"),
        ("started 0, exit0 0", ["STARTED", "EXITED succeeded exit_code 0"], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "stopped while running": [
        ("started 0", ["STARTED"], "running"),
        ("stop max_run_time 3", ["stop a.t0 max_run_time 3"], "stopping"),
        ("stopped 0", ["EXITED stopped max_run_time"], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "stopped, and it fails on the way": [
        ("started 0", ["STARTED"], "running"),
        ("stop", ["stop a.t0 cancelled 30"], "stopping"),
        ("exit1 0", ["EXITED stopped cancelled 1"], "ended"),
    ],
    "a stop that comes with the end stopped nothing": [
        ("started 0", ["STARTED"], "running"),
        ("stop, exit1 0", ["EXITED failed exit_code 1"], "ended"),
    ],
    "a stop after the end": [
        ("started 0, exit0 0", ["STARTED", "EXITED succeeded exit_code 0"], "ended"),
        ("stop", [], "ended"),
        ("emptied 0", ["released a.t0"], "ended"),
    ],
    "a second stop": [
        ("stop", ["stop a.t0 cancelled 30"], "stopping"),
        ("stop max_run_time 0", [], "stopping"),
        ("stopped 0", ["EXITED stopped cancelled"], "ended"),
    ],
    "stopped by nobody that placement knows of": [("stopped 0", ["EXITED stopped signal"], "ended")],
}


@pytest.mark.parametrize("case", SINGLE)
def test_single_task(case: str) -> None:
    run(Life(1), SINGLE[case])


GANG: dict[str, Steps] = {
    "three steps": [
        ("ready 0", [], "preparing"),
        ("ready 1", ["start a.t0", "start a.t1"], "starting"),
        ("started 1", [], "starting"),
        ("started 0", ["STARTED"], "running"),
        ("exit0 0, emptied 0", ["released a.t0"], "running"),
        ("exit0 1", ["EXITED succeeded exit_code 0"], "ended"),
        ("emptied 1", ["released a.t1"], "ended"),
    ],
    "one is through before the other was seen": [
        ("ready 0 1", ["start a.t0", "start a.t1"], "starting"),
        ("started 0, exit0 0, emptied 0", ["released a.t0"], "starting"),
        ("started 1, exit0 1, emptied 1", ["STARTED", "EXITED succeeded exit_code 0", "released a.t1"], "ended"),
    ],
    "all in one batch": [
        ("ready 0 1", ["start a.t0", "start a.t1"], "starting"),
        (
            "started 0, exit0 0, emptied 0, started 1, exit0 1, emptied 1",
            ["STARTED", "EXITED succeeded exit_code 0", "released a.t0", "released a.t1"],
            "ended",
        ),
    ],
    "one fails: the others are stopped": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("exit1 1", ["stop a.t0 gang_member_failed 7"], "stopping"),
        ("emptied 1", ["released a.t1"], "stopping"),
        ("stopped 0, emptied 0", ["EXITED failed exit_code 1", "released a.t0"], "ended"),
    ],
    "both fail at once: nothing to stop": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("exit1 0 1", ["EXITED failed exit_code 1"], "ended"),
    ],
    "one succeeds, then one fails": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("exit0 0", [], "running"),
        ("exit1 1", ["EXITED failed exit_code 1"], "ended"),
    ],
    "one cannot be prepared": [
        ("ready 0, nofile 1, emptied 1", ["stop a.t0 gang_member_failed 7", "released a.t1"], "stopping"),
        ("stopped 0, emptied 0", ["EXITED failed command_not_found", "released a.t0"], "ended"),
    ],
    "one cannot start": [
        ("ready 0 1", ["start a.t0", "start a.t1"], "starting"),
        ("nofile 1", ["stop a.t0 gang_member_failed 7"], "stopping"),
        ("started 0, stopped 0", ["EXITED failed command_not_found"], "ended"),
    ],
    "stopped while preparing": [
        ("ready 0", [], "preparing"),
        ("stop", ["stop a.t0 cancelled 30", "stop a.t1 cancelled 30"], "stopping"),
        ("ready 1", [], "stopping"),
        ("stopped 0 1", ["EXITED stopped cancelled"], "ended"),
    ],
    "stop and the last ready in one batch": [
        ("ready 0 1, stop", ["stop a.t0 cancelled 30", "stop a.t1 cancelled 30"], "stopping"),
    ],
    "stopped while running: only who still runs is told": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("exit0 0", [], "running"),
        ("stop", ["stop a.t1 cancelled 30"], "stopping"),
        ("stopped 1", ["EXITED stopped cancelled"], "ended"),
    ],
    "the deadline passes while preparing": [
        ("ready 1", [], "preparing"),
        ("deadline", ["stop a.t0 start_deadline 7", "stop a.t1 start_deadline 7"], "stopping"),
        ("stopped 0 1", ["EXITED stopped start_deadline"], "ended"),
    ],
    "the deadline passes while starting": [
        ("ready 0 1", ["start a.t0", "start a.t1"], "starting"),
        ("started 0, deadline", ["stop a.t0 start_deadline 7", "stop a.t1 start_deadline 7"], "stopping"),
        ("stopped 0 1", ["EXITED stopped start_deadline"], "ended"),
    ],
    "a cancel after a member failed keeps the first cause": [
        ("ready 0 1, started 0 1", ["start a.t0", "start a.t1", "STARTED"], "running"),
        ("exit1 0", ["stop a.t1 gang_member_failed 7"], "stopping"),
        ("stop", [], "stopping"),
        ("stopped 1", ["EXITED failed exit_code 1"], "ended"),
    ],
}


@pytest.mark.parametrize("case", GANG)
def test_gang(case: str) -> None:
    run(Life(2), GANG[case])


def test_every_member_gets_the_address_of_rank_0() -> None:
    life = Life(3)
    life.tell("ready 1 2 0")
    assert {(e.master_addr, e.master_port) for e in life.events} == {("10.0.0.1", 4711)}
    assert [(e.work.task_rank, e.work.world_size) for e in life.events] == [(0, 3), (1, 3), (2, 3)]


def test_local_ranks_count_the_tasks_of_the_same_node() -> None:
    life = Life(4, nodes="n1 n1 n2 n1")
    life.tell("ready 0 1 2 3")
    assert [(e.node, e.work.local_rank, e.work.local_world_size) for e in life.events] == [
        ("n1", 0, 3),
        ("n1", 1, 3),
        ("n2", 0, 1),
        ("n1", 2, 3),
    ]


PENDING: dict[str, Steps] = {
    "nothing": [("", [], "pending")],
    "stopped": [("stop", ["EXITED stopped cancelled"], "ended")],
    "withdrawn": [("withdraw", ["EXITED stopped cancelled"], "ended")],
    "withdrawn and stopped": [("withdraw, stop max_run_time", ["EXITED stopped max_run_time"], "ended")],
}


@pytest.mark.parametrize("case", PENDING)
def test_pending(case: str) -> None:
    run(Life(pending=True), PENDING[case])


@pytest.mark.parametrize(
    ("before", "ends", "verdict"),
    [
        ("", "exit0 0 1 2", "succeeded exit_code 0"),
        ("", "exit1 2, exit0 0 1", "failed exit_code 1"),
        ("", "nofile 1, exit1 2, exit0 0", "failed command_not_found"),  # the first by rank explains
        ("stop", "stopped 0 1 2", "stopped cancelled"),
        ("stop", "exit0 0 1 2", "succeeded exit_code 0"),
        ("stop", "exit0 0, stopped 1 2", "stopped cancelled"),
        ("stop", "exit1 0, stopped 1 2", "stopped cancelled 1"),
        ("deadline", "exit1 0, stopped 1 2", "stopped start_deadline 1"),
        ("exit1 1", "stopped 0 2", "failed exit_code 1"),
        ("reboot n2", "stopped 0 2", "lost node_rebooted"),
        ("newjournal n2", "stopped 0 2", "lost agent_state_lost"),
        ("reboot n1", "exit1 1, stopped 2", "failed exit_code 1"),  # what a task says of itself before what befell it
        ("stop, reboot n1", "stopped 1 2", "stopped cancelled"),
        ("stopped 1", "stopped 0 2", "stopped gang_member_failed"),
    ],
)
def test_verdict(before: str, ends: str, verdict: str) -> None:
    life = Life(3)
    life.tell("ready 0 1 2", "started 0 1 2")
    life.tell(*(fact.strip() for fact in before.split(",") if fact))
    says = life.tell(*(fact.strip() for fact in ends.split(",")))
    assert [word for word in says if word.startswith("EXITED")] == [f"EXITED {verdict}"]


def test_the_end_lists_every_task() -> None:
    life = Life(2)
    life.tell("ready 0 1", "started 0 1", "exit1 1")
    life.tell("stopped 0")
    assert [(t.task_rank, t.outcome, t.reason, t.exit_code) for t in life.events[-1].tasks] == [
        (0, "stopped", "signal", None),
        (1, "failed", "exit_code", 1),
    ]


def test_command_numbers_rise() -> None:
    life = Life(2)
    life.tell("ready 0 1")
    life.tell("stop")
    assert [(e.allocation_id, e.command_seq) for e in life.events] == [
        ("a.t0", 2),
        ("a.t1", 2),
        ("a.t0", 3),
        ("a.t1", 3),
    ]
