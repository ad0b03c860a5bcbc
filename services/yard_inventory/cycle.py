"""Liveness of a cluster: which nodes are suspect or lost, and when to look again."""

from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from yard_domain.states import NodeState
from yard_inventory import repository
from yard_inventory.liveness import Watch, judge
from yard_inventory.settings import InventorySettings
from yard_obs.metrics import Metrics
from yard_obs.phases import CyclePhases
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.inventory")

LOOK = "look"
"""The one timer of a cluster: when its earliest silence becomes meaningful."""


async def judge_silence(uow: UnitOfWork, scope: str, *, settings: InventorySettings, metrics: Metrics) -> bool:
    """One look at the cluster `scope`. True: more nodes change than one look may handle."""
    phases = CyclePhases(metrics, "inventory")
    # 1. Has anybody listened since the last look? A new term or a missed look starts the watch anew.
    planned = [timer.due_at for timer in await uow.take_due_timers(scope)]
    term, stored_term, stored = await repository.watch(uow.connection, scope)
    watch = _resumed(stored, stored_term == term, planned, uow.now, settings)

    # 2. Judge every node that is not lost already.
    contacts = await repository.contacts(uow.connection, scope)
    verdict = judge(watch, contacts, uow.now, settings.limits())
    changes = dict(list(verdict.changes.items())[: settings.transitions_per_cycle])

    phases.lap("judge")

    # 3. Write what changed, and tell.
    if verdict.watch != stored or stored_term != term:
        await repository.save_watch(uow.connection, scope, term, verdict.watch)
        _tell_freeze(scope, watch, verdict.watch, len(contacts))
    await _transition(uow, changes)
    phases.lap("tell")
    if len(changes) < len(verdict.changes):
        return True

    # 4. One timer for the earliest deadline; contacts only postpone deadlines, so none of them moves it.
    if verdict.next_look is None:
        uow.clear_timer(scope, LOOK, scope)
    else:
        uow.set_timer(scope, LOOK, scope, verdict.next_look)
    return False


def _resumed(
    stored: Watch | None, same_term: bool, planned: list[datetime], now: datetime, settings: InventorySettings
) -> Watch:
    """The watch as it goes on: silence counts only from when somebody listened. A freeze outlives a restart."""
    if stored is None:
        return Watch(now)
    if not same_term:
        return replace(stored, since=now)
    late = max((now - max(due, stored.since) for due in planned), default=timedelta(0))
    if late.total_seconds() <= settings.standstill_seconds:
        return stored
    _log.warning("inventory stood still; the silence meanwhile is not counted", late_seconds=late.total_seconds())
    return replace(stored, since=now)


def _tell_freeze(cluster: str, before: Watch, after: Watch, nodes: int) -> None:
    if before.frozen_since is None and after.frozen_since is not None:
        _log.error(
            "all nodes are silent at once: the control plane is the suspect, nobody is declared lost",
            cluster=cluster,
            nodes=nodes,
        )
    elif before.frozen_since is not None and after.frozen_since is None:
        _log.warning("nodes are heard again", cluster=cluster, nobody_lost_before=str(after.grace_until))


async def _transition(uow: UnitOfWork, changes: dict[str, NodeState]) -> None:
    if not changes:
        return
    await repository.save_states(uow.connection, changes)
    nodes = await repository.with_devices(uow.connection, await repository.nodes(uow.connection, changes))
    for node in nodes.values():
        _log.warning("node is silent", node=node.name, state=node.state.value, last_contact=str(node.last_contact))
        uow.emit(node.to_event(uow.now))
