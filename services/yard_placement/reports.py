"""Reconciling an agent's periodic report with the ledger: lost commands are sent again, unknown tasks are stopped."""

from collections.abc import Sequence
from datetime import datetime

from yard_events.types import NodeReport, ReportedAllocation, StopTask
from yard_placement import repository
from yard_placement.outbox import command_event
from yard_store.unit_of_work import UnitOfWork

_UNKNOWN_GRACE_SECONDS = 5.0


async def fold_reports(reports: Sequence[NodeReport], uow: UnitOfWork, reissue_before: datetime) -> None:
    """Compare the newest report of each node with what the ledger has live on it."""
    live = await repository.live_allocations_of_nodes(uow.connection, [report.node for report in reports])
    by_node = {
        report.node: {item.allocation_id: item for item in report.allocations if not item.emptied} for report in reports
    }
    epochs = {report.node: report.epoch for report in reports}
    for allocation in live:
        seen = by_node[allocation.node].get(allocation.allocation_id)
        if allocation.epoch != epochs[allocation.node] or allocation.emptied:
            continue
        if (seen is None or seen.command_seq < allocation.command_seq) and allocation.commanded_at < reissue_before:
            uow.emit(command_event(allocation))
    await _stop_unknown(reports, by_node, {allocation.allocation_id for allocation in live}, uow)


async def _stop_unknown(
    reports: Sequence[NodeReport],
    by_node: dict[str, dict[str, ReportedAllocation]],
    live: set[str],
    uow: UnitOfWork,
) -> None:
    """A task that the ledger has closed, or never heard of, must not go on touching devices."""
    for report in reports:
        for item in by_node[report.node].values():
            if item.allocation_id in live or item.state == "exited":
                continue
            uow.emit(
                StopTask(
                    node=report.node,
                    epoch=report.epoch,
                    allocation_id=item.allocation_id,
                    command_seq=item.command_seq + 1000,
                    grace_seconds=_UNKNOWN_GRACE_SECONDS,
                    reason="unknown_allocation",
                )
            )
