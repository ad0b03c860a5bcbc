"""Reconciling an agent's periodic report with the ledger: lost commands are sent again, unknown tasks are stopped."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from yard_domain.reasons import Reason
from yard_events.envelope import Envelope
from yard_events.types import NodeReport, ReportedAllocation, StopTask
from yard_placement import repository
from yard_placement.ledger import Allocation
from yard_placement.outbox import command_of
from yard_store.unit_of_work import UnitOfWork

_UNKNOWN_GRACE_SECONDS = 5.0
_ABOVE_ANY_COMMAND = 1000
"""An allocation gets a handful of commands in its life; the agent takes what is above the last it saw."""


async def fold_reports(
    received: Sequence[tuple[NodeReport, Envelope]], uow: UnitOfWork, reissue_before: datetime
) -> None:
    """Compare the newest report of each node with what the ledger has live on it."""
    reports = [report for report, _ in received]
    causes = {report.node: envelope for report, envelope in received}
    live = await repository.live_allocations_of_nodes(uow.connection, [report.node for report in reports])
    by_node = {
        report.node: {item.allocation_id: item for item in report.allocations if not item.emptied} for report in reports
    }
    epochs = {report.node: report.epoch for report in reports}
    unseen = [
        allocation
        for allocation in live
        if allocation.epoch == epochs[allocation.node]
        and not allocation.emptied
        and allocation.commanded_at < reissue_before
        and _last_seen(by_node[allocation.node].get(allocation.allocation_id)) < allocation.command_seq
    ]
    await _send_again(unseen, causes, uow)
    _stop_unknown(reports, by_node, {allocation.allocation_id for allocation in live}, causes, uow)


def _last_seen(item: ReportedAllocation | None) -> int:
    return item.command_seq if item is not None else -1


async def _send_again(unseen: Sequence[Allocation], causes: Mapping[str, Envelope], uow: UnitOfWork) -> None:
    """With the number it had, so that an agent that got it after all drops it. Again only after another such time:
    an agent that is merely slow must not be buried."""
    if not unseen:
        return
    attempts = await repository.attempts_by_id(uow.connection, [allocation.attempt_id for allocation in unseen])
    wanted = {allocation.allocation_id for allocation in unseen}
    again = [a for attempt in attempts.values() for a in attempt.allocations if a.allocation_id in wanted]
    for allocation in sorted(again, key=lambda allocation: allocation.allocation_id):
        command_of(attempts[allocation.attempt_id], allocation).emit(uow, causes[allocation.node])
        allocation.commanded_at = uow.now
    await repository.save_commands(uow.connection, again)


def _stop_unknown(
    reports: Sequence[NodeReport],
    by_node: dict[str, dict[str, ReportedAllocation]],
    live: set[str],
    causes: Mapping[str, Envelope],
    uow: UnitOfWork,
) -> None:
    """A task that the ledger has closed, or never heard of, must not go on touching devices."""
    for report in reports:
        for item in by_node[report.node].values():
            if item.allocation_id in live or item.state in ("exited", "stopping"):
                continue
            uow.emit(
                StopTask(
                    node=report.node,
                    epoch=report.epoch,
                    allocation_id=item.allocation_id,
                    command_seq=item.command_seq + _ABOVE_ANY_COMMAND,
                    grace_seconds=_UNKNOWN_GRACE_SECONDS,
                    reason=Reason.CANCELLED,
                ),
                causes[report.node],
            )
