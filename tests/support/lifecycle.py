"""An attempt under test, told facts one by one: what it decides and commands, in short words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from yard_domain.states import AllocationState, AttemptState
from yard_events import types
from yard_events.base import EventModel
from yard_placement.ledger import Allocation, Attempt, NodeFacts
from yard_placement.lifecycle import advance
from yard_placement.outbox import PREPARE, START, LedgerClock, Outbox

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = "boot/journal"


def attempt_of(tasks: int, nodes: str = "n1 n2 n3 n4") -> Attempt:
    """Just granted: one task per node, the first command sent."""
    names = nodes.split()
    attempt = Attempt(
        attempt_id="a",
        job_id="j",
        project_id="p",
        attempt=1,
        queue="q",
        name="train",
        pool_key="local/default",
        priority=0,
        submitted_at=NOW,
        pending_since=NOW,
        spec={"tasks": {"count": tasks, "gpus": 1}, "run": {"command": ["true"]}},
        state=AttemptState.PREPARING if tasks > 1 else AttemptState.STARTING,
    )
    attempt.allocations = [
        Allocation(
            allocation_id=f"a.t{rank}",
            attempt_id="a",
            job_id="j",
            project_id="p",
            task_rank=rank,
            node=names[rank % len(names)],
            epoch=EPOCH,
            device_uuids=[f"GPU-{rank}"],
            cpus=0.0,
            memory_bytes=0,
            state=AllocationState.GRANTED,
            command_seq=1,
            command_type=PREPARE if tasks > 1 else START,
            command={},
            commanded_at=NOW,
            granted_at=NOW,
            billed_since=NOW,
        )
        for rank in range(tasks)
    ]
    return attempt


class Life:
    """Facts go in as words: `ready 0`, `started 0 1`, `exit0 0` (code 0), `exit1 0` (code 1), `stopped 0`, `emptied 0`,
    `lost n1`, `back n1`, `reboot n1`, `newjournal n1`, `stop`, `withdraw`, `deadline`, `wait` (a minute goes by)."""

    def __init__(self, tasks: int = 1, *, nodes: str = "n1 n2 n3 n4", pending: bool = False) -> None:
        self.attempt = attempt_of(tasks, nodes)
        if pending:
            self.attempt.allocations, self.attempt.state = [], AttemptState.PENDING
        self.nodes = {name: NodeFacts("ready", EPOCH, "", NOW, "boot") for name in set(nodes.split())}
        self.now = NOW
        self.clock = LedgerClock(NOW)
        self.events: list[EventModel] = []
        self.released: list[str] = []

    def tell(self, *facts: str) -> list[str]:
        """Fold the facts in one batch, let the cycle look once; what it decided and commanded."""
        for fact in facts:
            word, *arguments = fact.split()
            getattr(self, f"_{word}")(*arguments)
        return self.look()

    def look(self) -> list[str]:
        self.clock.last = max(self.clock.last, self.now)
        outbox = Outbox(self.clock, self.now)
        released = advance(self.attempt, self.nodes, outbox, grace_seconds=7.0)
        self.released += [allocation.allocation_id for allocation in released]
        self.events += [each.event for each in outbox.events]
        return [said(each.event) for each in outbox.events]

    @property
    def state(self) -> str:
        return self.attempt.state.value if isinstance(self.attempt.state, AttemptState) else self.attempt.state

    def task(self, rank: int) -> Allocation:
        return self.attempt.allocations[rank]

    # --- facts, as handlers would fold them

    def _each(self, ranks: tuple[str, ...]) -> list[Allocation]:
        return [self.task(int(rank)) for rank in ranks if self.task(int(rank)).live]

    def _ready(self, *ranks: str) -> None:
        for a in self._each(ranks):
            a.ready = True
            if a.task_rank == 0:
                a.master_addr, a.master_port = "10.0.0.1", 4711

    def _started(self, *ranks: str) -> None:
        for a in self._each(ranks):
            a.started = True

    def _end(self, ranks: tuple[str, ...], outcome: str, reason: str, code: int | None) -> None:
        for a in self._each(ranks):
            if not a.exited:
                a.exit(outcome, reason)
                a.exit_code = code

    def _exit0(self, *ranks: str) -> None:
        self._end(ranks, "succeeded", "exit_code", 0)

    def _exit1(self, *ranks: str) -> None:
        self._end(ranks, "failed", "exit_code", 1)

    def _nofile(self, *ranks: str) -> None:
        self._end(ranks, "failed", "command_not_found", None)

    def _stopped(self, *ranks: str) -> None:
        self._end(ranks, "stopped", "signal", None)

    def _emptied(self, *ranks: str) -> None:
        for a in self._each(ranks):
            a.emptied = True

    def _node(self, name: str, **change: Any) -> None:
        old = self.nodes[name]
        base = {"state": old.state, "epoch": old.epoch, "agent_url": "", "last_contact": old.last_contact}
        self.nodes[name] = NodeFacts(**(base | {"boot_id": old.boot_id} | change))

    def _lost(self, name: str) -> None:
        self._node(name, state="lost")

    def _suspect(self, name: str) -> None:
        self._node(name, state="suspect")

    def _back(self, name: str) -> None:
        self._node(name, state="ready", last_contact=self.now)

    def _backrebooted(self, name: str) -> None:
        """Inventory says so before the agent does."""
        self._node(name, state="ready", boot_id="boot2", last_contact=self.now)

    def _reboot(self, name: str) -> None:
        self._node(name, epoch="boot2/journal", boot_id="boot2")

    def _newjournal(self, name: str) -> None:
        self._node(name, epoch="boot/journal2")

    def _stop(self, reason: str = "cancelled", grace: str = "30") -> None:
        if self.attempt.stop_reason is None:
            self.attempt.stop_reason, self.attempt.stop_grace_seconds = reason, float(grace)

    def _withdraw(self) -> None:
        self.attempt.withdrawn = True

    def _deadline(self) -> None:
        self.attempt.stop_reason = self.attempt.stop_reason or "start_deadline"

    def _wait(self) -> None:
        self.now += timedelta(minutes=1)


def said(event: EventModel) -> str:
    """Short: `start a.t0`, `EXITED failed exit_code 1`, `released a.t0`, `LOST a.t0 a.t1`."""
    match event:
        case types.PrepareTask():
            return f"prepare {event.allocation_id}"
        case types.StartTask():
            return f"start {event.allocation_id}"
        case types.StopTask():
            return f"stop {event.allocation_id} {event.reason} {event.grace_seconds:g}"
        case types.AttemptStarted():
            return "STARTED"
        case types.AttemptExited():
            code = f" {event.exit_code}" if event.exit_code is not None else ""
            return f"EXITED {event.outcome} {event.reason}{code}"
        case types.AllocationReleased():
            return f"released {event.allocation_id}"
        case types.AttemptLost():
            return " ".join(["LOST", *event.allocation_ids])
        case types.AttemptRecovered():
            return " ".join(["RECOVERED", *event.allocation_ids])
        case _:
            raise AssertionError(f"a lifecycle does not say {event!r}")


Steps = list[tuple[str, list[str], str]]
"""(facts, separated by commas; what is said; the state after)"""


def run(life: Life, steps: Steps) -> None:
    for facts, says, state in steps:
        told = life.tell(*(fact.strip() for fact in facts.split(",") if fact.strip()))
        assert (facts, told, life.state) == (facts, says, state)
        assert life.look() == [], f"after {facts!r}: a second look with nothing new says nothing"
