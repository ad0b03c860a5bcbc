"""Handlers fold facts into the ledger and mark the pool dirty; they decide nothing."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from yard_bus.consumer import Received
from yard_domain.errors import Permanent
from yard_domain.names import pool_key
from yard_domain.states import AttemptState, NodeState
from yard_events.envelope import Envelope
from yard_events.types import (
    InventoryNode,
    NodeRegistered,
    NodeReport,
    PlaceAttempt,
    StopAttempt,
    WithdrawAttempt,
)
from yard_obs.tracing import carried_trace
from yard_placement import repository
from yard_placement.facts import TASK_FACTS, fold_task_facts
from yard_placement.ledger import Attempt
from yard_placement.look import Look
from yard_placement.reports import fold_reports
from yard_placement.repository import DEVICES, NODES
from yard_placement.settings import PlacementSettings
from yard_store.bulk import any_of, bulk_insert
from yard_store.unit_of_work import UnitOfWork


class PlacementHandlers:
    def __init__(self, settings: PlacementSettings, look: Look) -> None:
        self._settings = settings
        self._look = look
        self._scope = pool_key(settings.cluster, settings.pool)

    async def requests(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """Admission's commands: place, stop, withdraw. Raises Permanent for a pool that is not served here."""
        new: dict[str, Attempt] = {}
        orders: list[tuple[StopAttempt | WithdrawAttempt, Envelope]] = []
        for received in batch:
            data = received.data
            if not isinstance(data, PlaceAttempt | StopAttempt | WithdrawAttempt):
                continue
            if data.key() != self._scope:
                raise Permanent(f"{data.attempt_id}: pool {data.key()} is not served here, only {self._scope} is")
            if isinstance(data, PlaceAttempt):
                new.setdefault(data.attempt_id, _pending(data, received.envelope, uow))
            else:
                orders.append((data, received.envelope))
        await repository.insert_attempts(uow.connection, list(new.values()))
        if orders:
            known = await repository.attempts_by_id(uow.connection, [order.attempt_id for order, _ in orders])
            for order, envelope in orders:
                attempt = known.get(order.attempt_id)
                if attempt is not None:
                    _order(attempt, order, envelope)
            await repository.save_orders(uow.connection, [a for a in known.values() if a.attention])
        self._look_again(uow)

    async def inventory(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """Which nodes and devices exist and may be used. The newest state of each node in the batch counts."""
        newest = {data.node: (r.record.offset, data) for r in batch if isinstance(data := r.data, InventoryNode)}
        known = await _known_nodes(uow, newest)
        rows: list[dict[str, Any]] = []
        devices: dict[str, dict[str, Any]] = {}
        unlike: list[str] = []
        for name, (offset, node) in newest.items():
            before = known.get(name)
            if before is not None and offset <= before.inventory_offset:
                continue
            rows.append(_node_row(node, offset))
            devices |= {device["uuid"]: device for device in _device_rows(node)}
            if before is None or (before.state, before.boot_id) != (node.state, node.boot_id):
                unlike.append(name)
        if not rows:
            return
        await bulk_insert(uow.connection, NODES, rows, update=[name for name in rows[0] if name != "name"])
        gone = sa.update(DEVICES).where(any_of(DEVICES.c.node, [row["name"] for row in rows]))
        await uow.connection.execute(gone.where(~any_of(DEVICES.c.uuid, list(devices))).values(present=False))
        await bulk_insert(
            uow.connection,
            DEVICES,
            list(devices.values()),
            update=["node", "idx", "model", "memory_bytes", "healthy", "present"],
        )
        await repository.attend_to_nodes(uow.connection, unlike)
        self._look_again(uow)

    async def node_events(self, batch: Sequence[Received], uow: UnitOfWork) -> None:
        """What agents saw. Facts about one allocation arrive in the order in which they happened."""
        facts = [received.data for received in batch if isinstance(received.data, TASK_FACTS)]
        if await fold_task_facts(uow.connection, facts):
            uow.mark_dirty(self._scope)
        of_nodes = [(r, r.data) for r in batch if isinstance(r.data, NodeRegistered | NodeReport)]
        if of_nodes:
            await self._nodes(of_nodes, uow)

    async def _nodes(self, facts: Sequence[tuple[Received, NodeRegistered | NodeReport]], uow: UnitOfWork) -> None:
        """A registration names the agent's epoch; allocations of an older one are closed by the cycle."""
        known = await _known_nodes(uow, {fact.node for _, fact in facts})
        fresh = [
            (received, fact)
            for received, fact in facts
            if (before := known.get(fact.node)) is None or received.record.offset > before.agent_offset
        ]
        if not fresh:
            return
        epochs = {fact.node: fact.epoch for _, fact in fresh if isinstance(fact, NodeRegistered)}
        rows = [
            {
                "name": name,
                "epoch": epochs.get(name) or (known[name].epoch if name in known else None),
                "memory_bytes": 0,
                "agent_offset": offset,
            }
            for name, offset in {fact.node: received.record.offset for received, fact in fresh}.items()
        ]
        await bulk_insert(uow.connection, NODES, rows, update=["epoch", "agent_offset"])
        changed = [name for name, epoch in epochs.items() if name not in known or known[name].epoch != epoch]
        if changed:
            await repository.attend_to_nodes(uow.connection, changed)
            self._look_again(uow)
        reports = {fact.node: (fact, received.envelope) for received, fact in fresh if isinstance(fact, NodeReport)}
        if reports:
            reissue_before = uow.now - timedelta(seconds=self._settings.reissue_after_seconds)
            await fold_reports(list(reports.values()), uow, reissue_before)

    def _look_again(self, uow: UnitOfWork) -> None:
        uow.mark_dirty(self._scope)
        uow.after_commit(self._look.again)


async def _known_nodes(uow: UnitOfWork, names: Iterable[str]) -> dict[str, Any]:
    columns = (
        NODES.c.name,
        NODES.c.state,
        NODES.c.epoch,
        NODES.c.boot_id,
        NODES.c.agent_offset,
        NODES.c.inventory_offset,
    )
    found = await uow.connection.execute(sa.select(*columns).where(any_of(NODES.c.name, sorted(names))))
    return {row.name: row for row in found}


def _pending(data: PlaceAttempt, envelope: Envelope, uow: UnitOfWork) -> Attempt:
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
        pending_since=uow.now,
        spec={
            "tasks": data.tasks.model_dump(mode="json", exclude_none=True),
            "run": data.run.model_dump(mode="json", exclude_none=True),
        },
        trace=carried_trace(envelope.extra),
        correlation_id=envelope.correlation_id or envelope.id,
    )


def _order(attempt: Attempt, order: StopAttempt | WithdrawAttempt, envelope: Envelope) -> None:
    """The first stop counts; a withdrawal means nothing once the attempt was granted. A change wants attention."""
    if attempt.state == AttemptState.ENDED:
        return
    if isinstance(order, WithdrawAttempt):
        if attempt.state == AttemptState.PENDING and not attempt.withdrawn:
            attempt.withdrawn = attempt.attention = True
    elif attempt.stop_reason is None:
        attempt.stop_reason, attempt.stop_grace_seconds = order.reason, order.grace_seconds
        attempt.stop_trace = carried_trace(envelope.extra)
        attempt.attention = True


def _node_row(node: InventoryNode, offset: int) -> dict[str, Any]:
    if node.state not in set(NodeState):
        raise Permanent(f"node {node.node}: {node.state!r} is no state of a node")
    return {
        "name": node.node,
        "pool_key": pool_key(node.cluster, node.pool),
        "state": node.state,
        "cordoned": node.cordoned,
        "agent_url": node.agent_url,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "last_contact": node.last_contact,
        "boot_id": node.boot_id,
        "inventory_offset": offset,
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
