"""Whose a process is, on process tables made by hand. pid 2**22 and above do not exist, so nothing real is read."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import yard_agent.keeper

BASE = 1 << 23
KEEPER = os.getpid()


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The keeper's modules, which find each other only as the program does."""
    names = ("process_tree", "task", "ownership")
    monkeypatch.syspath_prepend(str(Path(yard_agent.keeper.__file__).parent))
    modules = {name: __import__(name) for name in names}
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    return SimpleNamespace(**modules)


class Table:
    """`add(number, below, ...)`: a process BASE+number; parent 0 is the keeper itself."""

    def __init__(self, keeper: SimpleNamespace) -> None:
        self._process = keeper.process_tree.Process
        self.rows: dict[int, object] = {}

    def add(
        self, number: int, below: int = 0, *, session: int | None = None, started: int = 100, dead: bool = False
    ) -> "Table":
        pid = BASE + number
        own = pid if session is None else BASE + session
        self.rows[pid] = self._process(pid, BASE + below if below else KEEPER, own, own, started, dead)
        return self

    def without(self, *numbers: int) -> "Table":
        for number in numbers:
            del self.rows[BASE + number]
        return self


def task(keeper: SimpleNamespace, number: int, *, ended: bool = False, started: int = 100):  # type: ignore[no-untyped-def]
    made = keeper.task.Task(f"task-{number}", "boot")
    made.pid, made.started = BASE + number, started
    made.state = keeper.task.EXITED if ended else keeper.task.RUNNING
    return made


def numbers(members: dict[int, int]) -> set[int]:
    return {pid - BASE for pid in members}


def test_the_tree_below_the_root_is_the_tasks(keeper: SimpleNamespace) -> None:
    one, two = task(keeper, 1), task(keeper, 2)
    table = Table(keeper).add(1).add(2).add(3, 1).add(4, 3, session=3).add(5, 2).add(6, 4, dead=True)
    assert keeper.ownership.Ownership().assign([one, two], table.rows) == []
    assert (numbers(one.members), numbers(two.members)) == ({1, 3, 4}, {2, 5})


def test_a_child_seen_in_the_tree_stays_the_tasks_when_its_parent_dies(keeper: SimpleNamespace) -> None:
    one, two = task(keeper, 1), task(keeper, 2)
    ownership = keeper.ownership.Ownership()
    ownership.assign([one, two], Table(keeper).add(1).add(2).add(3, 1).rows)
    one.state = keeper.task.EXITED
    ownership.assign([one, two], Table(keeper).add(2).add(3).add(4, 3).rows)
    assert (numbers(one.members), numbers(two.members)) == ({3, 4}, {2})


def test_a_number_given_to_another_process_is_not_remembered(keeper: SimpleNamespace) -> None:
    one, two = task(keeper, 1), task(keeper, 2)
    ownership = keeper.ownership.Ownership()
    ownership.assign([one, two], Table(keeper).add(1).add(2).add(3, 1).rows)
    one.state = keeper.task.EXITED
    ownership.assign([one, two], Table(keeper).add(2).add(3, 2, started=200).rows)
    assert (numbers(one.members), numbers(two.members)) == (set(), {2, 3})


def test_the_session_tells_while_it_lives_and_never_again(keeper: SimpleNamespace) -> None:
    one = task(keeper, 1, ended=True)
    ownership = keeper.ownership.Ownership()
    ownership.assign([one], Table(keeper).add(3, session=1).rows)
    assert numbers(one.members) == {3}
    ownership.assign([one], Table(keeper).rows)
    assert one.session_ended
    new = task(keeper, 1, started=300)
    new.allocation_id = "task-new"
    ownership.assign([one, new], Table(keeper).add(1, started=300).add(4, session=1, started=301).rows)
    assert (numbers(one.members), numbers(new.members)) == (set(), {1, 4})


def test_a_stray_that_could_be_of_a_running_task_holds_the_ended_one_back(keeper: SimpleNamespace) -> None:
    """Killing it could hurt the task that runs, calling the other empty could hand on its device: so neither."""
    ended, running, later = task(keeper, 1, ended=True), task(keeper, 2), task(keeper, 3, started=500)
    ownership = keeper.ownership.Ownership()
    table = Table(keeper).add(2).add(3, started=500).add(9, started=400).add(10, 9)
    assert ownership.assign([ended, running, later], table.rows) == []
    assert (ended.blocked, numbers(ended.members), numbers(running.members)) == (True, set(), {2})
    later.state = keeper.task.EXITED
    assert ownership.assign([ended, running, later], table.without(3).rows) == []
    assert not later.blocked, "it began after the stray"
    running.state = keeper.task.EXITED
    ownership.assign([ended, running, later], table.without(2).rows)
    assert not ended.blocked
    assert (numbers(ended.members), numbers(running.members), numbers(later.members)) == ({9, 10}, {9, 10}, set())


def test_a_stray_that_no_task_can_claim_is_to_be_killed(keeper: SimpleNamespace) -> None:
    later = task(keeper, 1, started=500)
    unclaimed = keeper.ownership.Ownership().assign([later], Table(keeper).add(1, started=500).add(9).add(10, 9).rows)
    assert {process.pid - BASE for process in unclaimed} == {9, 10}
    assert numbers(later.members) == {1}
