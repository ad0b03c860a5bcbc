"""Which process belongs to which task.

The keeper is the subreaper of everything it starts, so whatever tasks leave behind becomes its child: below the keeper
nothing is missed. A child of the keeper is a task's if it is the root, was seen in the task's tree earlier, is in the
root's session, or was started with the task's marker. After a keeper's death only pids, sessions and markers are left.
"""

import os

from process_tree import Process, allocation_of, children_by_parent, subtree
from task import EXITED, Task


class Ownership:
    """Fills `members`, `blocked` and `session_ended` of tasks from one look at /proc."""

    def __init__(self) -> None:
        self._keeper_pid = os.getpid()
        # (pid, started) of children that nothing ties to a task -> the tasks that may have made them
        self._strays: dict[tuple[int, int], list[Task]] = {}

    def assign(self, tasks: list[Task], processes: dict[int, Process]) -> list[Process]:
        """Returns the stray processes that no living task can claim: they are to be killed."""
        children = children_by_parent(processes)
        for task in tasks:
            self._check_session(task, processes)
            task.blocked = False
            task.members = {
                pid: started
                for pid, started in task.members.items()
                if pid in processes and processes[pid].started == started and not processes[pid].dead
            }
        own = [task for task in tasks if not task.orphaned]
        unclaimed = self._assign_children(own, processes, children)
        orphaned = [task for task in tasks if task.orphaned]
        if orphaned:
            self._assign_orphaned(orphaned, processes, children)
        return unclaimed

    def _check_session(self, task: Task, processes: dict[int, Process]) -> None:
        """A session's number stays taken while it has members; after that it says nothing about the task."""
        if task.state != EXITED or task.session_ended or task.orphaned:
            return
        leader = processes.get(task.pid) if task.pid is not None else None
        if (leader is not None and leader.started != task.started) or not any(
            process.session == task.pid for process in processes.values()
        ):
            task.session_ended = True

    def _assign_children(
        self, tasks: list[Task], processes: dict[int, Process], children: dict[int, list[Process]]
    ) -> list[Process]:
        remembered = {(pid, started): task for task in tasks for pid, started in task.members.items()}
        remembered.update({(task.pid, task.started): task for task in tasks if task.pid is not None})
        sessions = {task.pid: task for task in tasks if task.pid is not None and not task.session_ended}
        by_id = {task.allocation_id: task for task in tasks}
        strays: dict[tuple[int, int], list[Task]] = {}
        unclaimed: list[Process] = []
        for child in children.get(self._keeper_pid, ()):
            if child.dead:
                continue
            identity = (child.pid, child.started)
            tree = subtree([child], children)
            owner = remembered.get(identity) or sessions.get(child.session)
            if owner is None:
                owner = by_id.get(allocation_of(child.pid) or "")
            if owner is not None:
                _add(owner, tree)
                continue
            candidates = self._strays.get(identity)
            if candidates is None:
                candidates = [task for task in tasks if task.started is not None and task.started <= child.started]
            strays[identity] = candidates
            if not _claim_stray(candidates, tree):
                unclaimed.extend(process for process in tree if not process.dead)
        self._strays = strays
        return unclaimed

    def _assign_orphaned(
        self, tasks: list[Task], processes: dict[int, Process], children: dict[int, list[Process]]
    ) -> None:
        by_id = {task.allocation_id: task for task in tasks}
        roots: dict[int, Task] = {}
        for task in tasks:
            leader = processes.get(task.pid) if task.pid is not None else None
            if leader is not None and leader.started == task.started:
                roots[leader.pid] = task
                # With its leader alive, the session is the task's. Without, the number may be another's by now.
                roots.update({process.pid: task for process in processes.values() if process.session == leader.pid})
            roots.update(dict.fromkeys(task.members, task))
        for process in processes.values():
            if process.pid not in roots and not process.dead:
                owner = by_id.get(allocation_of(process.pid) or "")
                if owner is not None:
                    roots[process.pid] = owner
        for pid, task in roots.items():
            _add(task, [process for process in subtree([processes[pid]], children) if process.pid != self._keeper_pid])


def _add(task: Task, tree: list[Process]) -> None:
    task.members.update({process.pid: process.started for process in tree if not process.dead})


def _claim_stray(candidates: list[Task], tree: list[Process]) -> bool:
    """A stray of a task that still runs must not be killed, and no candidate that ended may count as empty."""
    ended = [task for task in candidates if task.state == EXITED and not task.emptied]
    if any(task.state != EXITED for task in candidates):
        for task in ended:
            task.blocked = True
        return True
    for task in ended:
        _add(task, tree)
    return bool(ended)
