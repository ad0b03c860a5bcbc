"""The life of one attempt, as a function of what is known of it: no I/O, so every path can be tested as a table.

    pending → preparing (gangs) → starting → running → ended
                     └──────────────┴──────────┴→ stopping → ended      any live → lost → back, or ended

A single task skips `preparing`. A gang starts when every member is ready and is stopped as a whole when one ends badly,
when its deadline passes or when somebody asks. An attempt is ended when all its tasks have exited; each allocation is
released when its node has seen its devices empty, which may be later.
"""

from datetime import datetime
from typing import Any

from yard_domain.reasons import Reason
from yard_domain.states import AllocationState, AttemptState, NodeState, Outcome
from yard_events.types import (
    AllocationReleased,
    AttemptExited,
    AttemptLost,
    AttemptRecovered,
    AttemptStarted,
)
from yard_placement.ledger import Allocation, Attempt, NodeFacts
from yard_placement.outbox import START, STOP, Outbox
from yard_placement.work import task_work


def advance(attempt: Attempt, nodes: dict[str, NodeFacts], outbox: Outbox, grace_seconds: float) -> list[Allocation]:
    """Move the attempt as far as what is known allows; returns the allocations released by it."""
    attempt.attention = False
    if attempt.state == AttemptState.PENDING:
        _end_pending(attempt, outbox)
        return []
    if attempt.state != AttemptState.ENDED:
        _close_old_epochs(attempt, nodes)
        _lose_or_recover(attempt, nodes, outbox)
        if attempt.state == AttemptState.PREPARING:
            _start_gang(attempt, outbox)
        if attempt.state == AttemptState.STARTING or not attempt.started_sent:
            _note_started(attempt, outbox)
        _stop_if_needed(attempt, outbox, grace_seconds)
        _end_if_all_exited(attempt, outbox)
    return _release_emptied(attempt, outbox)


def _end_pending(attempt: Attempt, outbox: Outbox) -> None:
    """A withdrawal is answered like a stop: until it hears that, admission must not place the job again."""
    if attempt.withdrawn or attempt.stop_reason is not None:
        attempt.state, attempt.ended_at = AttemptState.ENDED, outbox.now
        reason = attempt.stop_reason or attempt.reason or Reason.CANCELLED
        outbox.decide(AttemptExited, attempt, outcome=Outcome.STOPPED, reason=reason)


def _close_old_epochs(attempt: Attempt, nodes: dict[str, NodeFacts]) -> None:
    """A new epoch is announced only when nothing of the old one is left, so its tasks have ended and are gone."""
    for allocation in attempt.allocations:
        node = nodes.get(allocation.node)
        if not allocation.live or node is None or node.epoch is None or node.epoch == allocation.epoch:
            continue
        rebooted = node.epoch.partition("/")[0] != allocation.epoch.partition("/")[0]
        reason = Reason.NODE_REBOOTED if rebooted else Reason.AGENT_STATE_LOST
        allocation.exit(Outcome.LOST, reason)
        allocation.emptied = True


def _lose_or_recover(attempt: Attempt, nodes: dict[str, NodeFacts], outbox: Outbox) -> None:
    """Billing stops at the node's last contact and goes on when it is back; the devices stay booked all along."""
    missing: list[Allocation] = []
    back: list[Allocation] = []
    last_contact = outbox.now
    for allocation in attempt.allocations:
        node = nodes.get(allocation.node)
        silent = node is not None and node.state == NodeState.LOST
        if silent and not allocation.exited and allocation.lost_since is None:
            contact = node.last_contact if node is not None and node.last_contact is not None else outbox.now
            allocation.lost_since = max(contact, allocation.granted_at)
            last_contact = min(last_contact, allocation.lost_since)
            missing.append(allocation)
        elif not silent and allocation.lost_since is not None and not allocation.exited:
            back.append(allocation)
    if missing:
        attempt.lost_since = last_contact
        attempt.state = AttemptState.LOST
        ids = [allocation.allocation_id for allocation in missing]
        outbox.decide(AttemptLost, attempt, last_contact=last_contact, allocation_ids=ids)
    if back:
        _recover(attempt, back, outbox)


def _recover(attempt: Attempt, back: list[Allocation], outbox: Outbox) -> None:
    ids = [allocation.allocation_id for allocation in back]
    still_lost = any(a.lost_since is not None and a not in back for a in attempt.allocations if not a.exited)
    time = outbox.decide(AttemptRecovered, attempt, allocation_ids=ids)
    for allocation in back:
        _end_lost_time(allocation, time)
    if not still_lost:
        attempt.lost_since = None
        attempt.state = _state_when_known(attempt)


def _state_when_known(attempt: Attempt) -> AttemptState:
    if attempt.stop_sent:
        return AttemptState.STOPPING
    if attempt.started_sent:
        return AttemptState.RUNNING
    gang = len(attempt.allocations) > 1
    return AttemptState.PREPARING if gang and attempt.allocations[0].command_seq < 2 else AttemptState.STARTING


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
        payload: dict[str, Any] = {
            "work": task_work(attempt, allocation),
            "master_addr": first.master_addr,
            "master_port": first.master_port,
        }
        outbox.command(allocation, START, payload)
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
    """As a whole: on request, or because a member of the gang did not succeed."""
    if attempt.stop_reason is None:
        if not any(a.exited and a.outcome != Outcome.SUCCEEDED for a in attempt.allocations):
            return
        if all(a.exited for a in attempt.allocations):
            return
        attempt.stop_reason, attempt.stop_grace_seconds = Reason.GANG_MEMBER_FAILED, grace_seconds
    if attempt.stop_sent:
        return
    attempt.stop_sent = True
    if attempt.state != AttemptState.LOST:
        attempt.state = AttemptState.STOPPING
    grace = attempt.stop_grace_seconds if attempt.stop_grace_seconds is not None else grace_seconds
    for allocation in attempt.allocations:
        if not allocation.exited:
            outbox.command(allocation, STOP, {"grace_seconds": grace, "reason": attempt.stop_reason})


def _end_if_all_exited(attempt: Attempt, outbox: Outbox) -> None:
    if not all(allocation.exited for allocation in attempt.allocations):
        return
    attempt.state, attempt.ended_at, attempt.lost_since = AttemptState.ENDED, outbox.now, None
    outcome, cause = _verdict(attempt)
    outbox.decide(
        AttemptExited,
        attempt,
        outcome=outcome,
        reason=cause.reason if outcome != Outcome.STOPPED else attempt.stop_reason,
        exit_code=cause.exit_code,
        detail=cause.detail,
        tasks=[_task_end(allocation) for allocation in attempt.allocations],
    )


def _verdict(attempt: Attempt) -> tuple[Outcome, Allocation]:
    """The outcome, and the task that explains it: the first, by rank, that was not merely stopped with the others."""
    if all(a.outcome == Outcome.SUCCEEDED for a in attempt.allocations):
        return Outcome.SUCCEEDED, attempt.allocations[0]
    own = [a for a in attempt.allocations if a.outcome in (Outcome.FAILED, Outcome.LOST)]
    on_request = attempt.stop_reason not in (None, Reason.GANG_MEMBER_FAILED)
    if on_request:
        return Outcome.STOPPED, (own or attempt.allocations)[0]
    if not own:
        return Outcome.STOPPED, attempt.allocations[0]
    cause = next((a for a in own if a.outcome == Outcome.FAILED), own[0])
    return Outcome(cause.outcome or Outcome.FAILED), cause


def _task_end(allocation: Allocation) -> dict[str, Any]:
    return {
        "task_rank": allocation.task_rank,
        "outcome": allocation.outcome,
        "reason": allocation.reason,
        "exit_code": allocation.exit_code,
        "signal": allocation.signal,
        "detail": allocation.detail,
    }


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
