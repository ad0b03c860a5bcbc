"""Handlers fold facts into the ledger and mark the pool dirty; they decide nothing."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from yard_bus.consumer import Received
from yard_domain.names import pool_key
from yard_domain.states import AttemptState, NodeState
from yard_events.types import (
    DevicesEmptied,
    InventoryNode,
    NodeRegistered,
    NodeReport,
    PlaceAttempt,
    StopAttempt,
    TaskExited,
    TaskReady,
    TaskStarted,
    WithdrawAttempt,
)
from yard_placement import repository
from yard_placement.ledger import Allocation, Attempt
from yard_placement.reports import fold_reports
from yard_placement.repository import DEVICES, NODES
from yard_placement.settings import PlacementSettings
from yard_store.bulk import any_of, bulk_insert
from yard_store.unit_of_work import UnitOfWork


class PlacementHandlers:
    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings
        self._scope = pool_key(settings.cluster, settings.pool)

    async def requests(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """Admission's commands: place, stop, withdraw."""
        new: dict[str, Attempt] = {}
        orders: list[StopAttempt | WithdrawAttempt] = []
        for received in batch:
            data = received.data
            if isinstance(data, PlaceAttempt):
                new[data.attempt_id] = _pending(data)
            elif isinstance(data, StopAttempt | WithdrawAttempt):
                orders.append(data)
        await repository.insert_attempts(uow.connection, list(new.values()))
        if orders:
            known = await repository.attempts_by_id(uow.connection, [order.attempt_id for order in orders])
            for order in orders:
                attempt = known.get(order.attempt_id)
                if attempt is not None and attempt.state != AttemptState.ENDED:
                    _order(attempt, order)
            await repository.save_attempts(uow.connection, known.values())
        uow.mark_dirty(self._scope)

    async def inventory(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """Which nodes and devices exist and may be used. The newest state of each node in the batch counts."""
        newest = {data.node: data for received in batch if isinstance(data := received.data, InventoryNode)}
        if not newest:
            return
        await bulk_insert(
            uow.connection,
            NODES,
            [_node_row(node) for node in newest.values()],
            update=["pool_key", "state", "cordoned", "agent_url", "cpus", "memory_bytes", "last_contact"],
        )
        await uow.connection.execute(
            sa.update(DEVICES).where(any_of(DEVICES.c.node, list(newest))).values(present=False)
        )
        devices = [row for node in newest.values() for row in _device_rows(node)]
        await bulk_insert(
            uow.connection, DEVICES, devices, update=["node", "idx", "model", "memory_bytes", "healthy", "present"]
        )
        live = await repository.live_allocations_of_nodes(uow.connection, newest)
        await repository.want_attention(uow.connection, [allocation.attempt_id for allocation in live])
        uow.mark_dirty(self._scope)

    async def node_events(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """What agents saw. Facts about one allocation arrive in the order in which they happened."""
        facts = [r.data for r in batch if isinstance(r.data, TaskReady | TaskStarted | TaskExited | DevicesEmptied)]
        known = await repository.allocations_by_id(uow.connection, [fact.allocation_id for fact in facts])
        for fact in facts:
            allocation = known.get(fact.allocation_id)
            if allocation is not None and allocation.live:
                _fold(allocation, fact)
        changed = [allocation for allocation in known.values() if allocation.live]
        await repository.save_allocations(uow.connection, changed)
        await repository.want_attention(uow.connection, [allocation.attempt_id for allocation in changed])
        await self._epochs(batch, uow)
        reports = {data.node: data for r in batch if isinstance(data := r.data, NodeReport)}
        if reports:
            reissue_before = uow.now - timedelta(seconds=self._settings.reissue_after_seconds)
            await fold_reports(list(reports.values()), uow, reissue_before)
        if changed:
            uow.mark_dirty(self._scope)

    async def _epochs(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """A registration names the agent's epoch; allocations of an older one are closed by the cycle."""
        registered = {data.node: data for r in batch if isinstance(data := r.data, NodeRegistered)}
        if not registered:
            return
        rows = [{"name": node.node, "epoch": node.epoch, "memory_bytes": 0} for node in registered.values()]
        await bulk_insert(uow.connection, NODES, rows, update=["epoch"])
        live = await repository.live_allocations_of_nodes(uow.connection, registered)
        await repository.want_attention(uow.connection, [allocation.attempt_id for allocation in live])
        uow.mark_dirty(self._scope)


def _pending(data: PlaceAttempt) -> Attempt:
    return Attempt(
        attempt_id=data.attempt_id,
        job_id=data.job_id,
        project_id=data.project_id,
        attempt=data.attempt,
        queue=data.queue,
        name=data.name,
        pool_key=pool_key(data.cluster, data.pool),
        priority=data.priority,
        submitted_at=data.submitted_at,
        spec={
            "tasks": data.tasks.model_dump(mode="json", exclude_none=True),
            "run": data.run.model_dump(mode="json", exclude_none=True),
        },
    )


def _order(attempt: Attempt, order: StopAttempt | WithdrawAttempt) -> None:
    """The first stop counts; a withdrawal means nothing once the attempt was granted."""
    if isinstance(order, WithdrawAttempt):
        attempt.withdrawn = attempt.withdrawn or attempt.state == AttemptState.PENDING
    elif attempt.stop_reason is None:
        attempt.stop_reason, attempt.stop_grace_seconds = order.reason, order.grace_seconds
    attempt.attention = True


def _fold(allocation: Allocation, fact: TaskReady | TaskStarted | TaskExited | DevicesEmptied) -> None:
    if isinstance(fact, TaskReady):
        allocation.ready = True
        allocation.master_addr, allocation.master_port = fact.master_addr, fact.master_port
    elif isinstance(fact, TaskStarted):
        allocation.started = True
    elif isinstance(fact, TaskExited):
        allocation.exit(fact.outcome, fact.reason, fact.exit_code, fact.signal, fact.detail)
    else:
        allocation.emptied = True


def _node_row(node: InventoryNode) -> dict[str, Any]:
    return {
        "name": node.node,
        "pool_key": pool_key(node.cluster, node.pool),
        "state": NodeState(node.state).value,
        "cordoned": node.cordoned,
        "agent_url": node.agent_url,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "last_contact": node.last_contact,
    }


def _device_rows(node: InventoryNode) -> list[dict[str, Any]]:
    return [
        {
            "uuid": device.uuid,
            "node": node.node,
            "idx": device.index,
            "model": device.model,
            "memory_bytes": device.memory_bytes,
            "healthy": device.healthy,
            "present": True,
        }
        for device in node.devices
    ]
