"""The life of one attempt, as a function of what is known of it: no I/O, so every path can be tested as a table.

    pending → preparing (gangs) → starting → running → ended
                     └──────────────┴──────────┴→ stopping → ended      any live → lost → back, or ended

A single task skips `preparing`. A gang starts when every member is ready and is stopped as a whole when one ends badly,
when its deadline passes or when somebody asks. An attempt is ended when all its tasks have exited; each allocation is
released when its node has seen its devices empty, which may be later.
"""

from datetime import datetime

from yard_domain.reasons import Reason
from yard_domain.states import AllocationState, AttemptState, NodeState, Outcome
from yard_events.types import (
    AllocationReleased,
    AttemptExited,
    AttemptLost,
    AttemptRecovered,
    AttemptStarted,
    TaskEnd,
)
from yard_placement.ledger import Allocation, Attempt, NodeFacts, boot_of
from yard_placement.outbox import PREPARE, START, STOP, Outbox


def advance(attempt: Attempt, nodes: dict[str, NodeFacts], outbox: Outbox, grace_seconds: float) -> list[Allocation]:
    """Move the attempt as far as what is known allows; returns the allocations released by it."""
    attempt.attention = False
    if attempt.state == AttemptState.PENDING:
        _end_pending(attempt, outbox)
        return []
    _close_old_epochs(attempt, nodes)
    released: list[Allocation] = []
    if attempt.state != AttemptState.ENDED:
        _lose(attempt, nodes, outbox)
        released = _recover(attempt, nodes, outbox)
        if attempt.state == AttemptState.PREPARING:
            _start_gang(attempt, outbox)
        _note_started(attempt, outbox)
        _stop_if_needed(attempt, outbox, grace_seconds)
        _end_if_all_exited(attempt, outbox)
    return released + _release_emptied(attempt, outbox)


def _end_pending(attempt: Attempt, outbox: Outbox) -> None:
    """A withdrawal is answered like a stop: until it hears that, admission must not place the job again."""
    if attempt.withdrawn or attempt.stop_reason is not None:
        attempt.state, attempt.ended_at = AttemptState.ENDED, outbox.now
        reason = attempt.stop_reason or attempt.reason or Reason.CANCELLED
        outbox.decide(AttemptExited, attempt, outcome=Outcome.STOPPED, reason=reason)


def _close_old_epochs(attempt: Attempt, nodes: dict[str, NodeFacts]) -> None:
    """A new epoch is announced only when nothing of the old one is left, so its tasks have ended and are gone.

    Also for an attempt that has ended: the agent of a new epoch says nothing more of devices that were emptying.
    """
    for allocation in attempt.allocations:
        node = nodes.get(allocation.node)
        if not allocation.live or node is None or node.epoch in (None, allocation.epoch):
            continue
        rebooted = boot_of(node.epoch or "") != boot_of(allocation.epoch)
        allocation.exit(Outcome.LOST, Reason.NODE_REBOOTED if rebooted else Reason.AGENT_STATE_LOST)
        allocation.emptied = True


def _lose(attempt: Attempt, nodes: dict[str, NodeFacts], outbox: Outbox) -> None:
    """Billing stops at the node's last contact; the devices stay booked until the agent says more."""
    missing: dict[str, list[Allocation]] = {}
    for allocation in attempt.allocations:
        node = nodes.get(allocation.node)
        if node is not None and node.state == NodeState.LOST and not allocation.exited and not allocation.lost:
            missing.setdefault(allocation.node, []).append(allocation)
    for name, allocations in missing.items():
        # Another service's clock: within the bounds that billing sets, so that the two agree to the microsecond.
        last_contact = min(nodes[name].last_contact or outbox.now, outbox.clock.last)
        ids = [allocation.allocation_id for allocation in allocations]
        outbox.decide(AttemptLost, attempt, last_contact=last_contact, allocation_ids=ids)
        for allocation in allocations:
            allocation.lost_since = max(last_contact, allocation.billed_since)
        attempt.lost_since = min(attempt.lost_since or last_contact, last_contact)
        attempt.state = AttemptState.LOST


def _recover(attempt: Attempt, nodes: dict[str, NodeFacts], outbox: Outbox) -> list[Allocation]:
    """Billing goes on for what is back. What turned out to have ended is not lost either: the others may go on.

    Whatever is empty by now is released first, for it goes on no meter again.
    """
    if all(allocation.exited for allocation in attempt.allocations):
        return []  # it ends, which says more
    back = [a for a in attempt.allocations if a.lost_since is not None and (a.exited or _heard(a, nodes))]
    if not back:
        return []
    released = _release_emptied(attempt, outbox)
    time = outbox.decide(AttemptRecovered, attempt, allocation_ids=[allocation.allocation_id for allocation in back])
    for allocation in back:
        if allocation.live:
            _end_lost_time(allocation, time)
            allocation.billed_since = time
    if not any(allocation.lost for allocation in attempt.allocations):
        attempt.lost_since = None
        attempt.state = _state_when_known(attempt)
    return released


def _heard(allocation: Allocation, nodes: dict[str, NodeFacts]) -> bool:
    """A node that came back with another boot id has none of it: what its agent will say comes on another topic."""
    node = nodes.get(allocation.node)
    return node is None or (node.state != NodeState.LOST and node.current(allocation.epoch))


def _state_when_known(attempt: Attempt) -> AttemptState:
    if attempt.stop_sent:
        return AttemptState.STOPPING
    if attempt.started_sent:
        return AttemptState.RUNNING
    preparing = attempt.gang and attempt.allocations[0].command_type == PREPARE
    return AttemptState.PREPARING if preparing else AttemptState.STARTING


def _end_lost_time(allocation: Allocation, until: datetime) -> None:
    if allocation.lost_since is not None:
        lost = until - allocation.lost_since
        allocation.lost_micros += (lost.days * 86_400 + lost.seconds) * 1_000_000 + lost.microseconds
        allocation.lost_since = None


def _start_gang(attempt: Attempt, outbox: Outbox) -> None:
    """The third step: all are ready, so all start, with the address that rank 0's agent reported."""
    if attempt.stop_reason is not None or not all(a.ready and not a.exited for a in attempt.allocations):
        return
    first = attempt.allocations[0]
    for allocation in attempt.allocations:
        outbox.command(attempt, allocation, START, master_addr=first.master_addr, master_port=first.master_port)
    attempt.state = AttemptState.STARTING


def _note_started(attempt: Attempt, outbox: Outbox) -> None:
    """Started when every task was seen running, even if some ended before this cycle looked."""
    if attempt.started_sent or not all(allocation.started for allocation in attempt.allocations):
        return
    attempt.started_sent = True
    outbox.decide(AttemptStarted, attempt)
    for allocation in attempt.allocations:
        if allocation.state == AllocationState.GRANTED:
            allocation.state = AllocationState.HELD
    if attempt.state == AttemptState.STARTING:
        attempt.state = AttemptState.RUNNING


def _stop_if_needed(attempt: Attempt, outbox: Outbox, grace_seconds: float) -> None:
    """As a whole: on request, or because a member of the gang did not succeed. Once, and only what still runs."""
    running = [allocation for allocation in attempt.allocations if not allocation.exited]
    if not running:
        return
    if attempt.stop_reason is None:
        if not any(a.exited and a.outcome != Outcome.SUCCEEDED for a in attempt.allocations):
            return
        attempt.stop_reason, attempt.stop_grace_seconds = Reason.GANG_MEMBER_FAILED, grace_seconds
    if attempt.stop_sent:
        return
    attempt.stop_sent = True
    if attempt.state != AttemptState.LOST:
        attempt.state = AttemptState.STOPPING
    grace = attempt.stop_grace_seconds if attempt.stop_grace_seconds is not None else grace_seconds
    for allocation in running:
        outbox.command(attempt, allocation, STOP, grace_seconds=grace, reason=str(attempt.stop_reason))


def _end_if_all_exited(attempt: Attempt, outbox: Outbox) -> None:
    if not all(allocation.exited for allocation in attempt.allocations):
        return
    attempt.state, attempt.ended_at, attempt.lost_since = AttemptState.ENDED, outbox.now, None
    outcome, cause = _verdict(attempt)
    outbox.decide(
        AttemptExited,
        attempt,
        outcome=outcome,
        reason=(attempt.stop_reason if outcome == Outcome.STOPPED else None) or cause.reason,
        exit_code=cause.exit_code,
        detail=cause.detail,
        tasks=[_task_end(allocation) for allocation in attempt.allocations],
    )


def _verdict(attempt: Attempt) -> tuple[Outcome, Allocation]:
    """The outcome, and the task that explains it: the first, by rank, that was not merely stopped with the others.

    A stop that came when all had ended by themselves stopped nothing.
    """
    if all(a.outcome == Outcome.SUCCEEDED for a in attempt.allocations):
        return Outcome.SUCCEEDED, attempt.allocations[0]
    own = [a for a in attempt.allocations if a.outcome in (Outcome.FAILED, Outcome.LOST)]
    on_request = attempt.stop_sent and attempt.stop_reason != Reason.GANG_MEMBER_FAILED
    if on_request or not own:
        return Outcome.STOPPED, next(a for a in own or attempt.allocations if a.outcome != Outcome.SUCCEEDED)
    cause = next((a for a in own if a.outcome == Outcome.FAILED), own[0])
    return Outcome(cause.outcome or Outcome.FAILED), cause


def _task_end(allocation: Allocation) -> TaskEnd:
    return TaskEnd(
        task_rank=allocation.task_rank,
        outcome=allocation.outcome,
        reason=allocation.reason,
        exit_code=allocation.exit_code,
        signal=allocation.signal,
        detail=allocation.detail,
    )


def _release_emptied(attempt: Attempt, outbox: Outbox) -> list[Allocation]:
    """Hand back what its node has seen empty. Time during which the node was lost is not billed."""
    released: list[Allocation] = []
    for allocation in attempt.allocations:
        if allocation.live and allocation.exited and allocation.emptied:
            time = outbox.decide(
                AllocationReleased, attempt, allocation_id=allocation.allocation_id, granted_at=allocation.granted_at
            )
            _end_lost_time(allocation, time)
            allocation.released_at = time
            allocation.state = AllocationState.RELEASED
            released.append(allocation)
    return released
