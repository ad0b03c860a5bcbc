"""What nodes say of themselves, folded into the inventory."""

from collections.abc import Sequence

import structlog

from yard_bus.consumer import Received
from yard_domain.states import NodeState
from yard_events.types import NodeRegistered, NodeReport
from yard_inventory import repository
from yard_inventory.fleet import Node, check_registration, heard, register, without_devices
from yard_store.unit_of_work import UnitOfWork

_log = structlog.get_logger("yard.inventory")


async def handle_node_events(batch: Sequence[Received], uow: UnitOfWork, *, cluster: str) -> None:
    """Registrations and reports; everything else that nodes tell is placement's. Raises Permanent for nonsense."""
    facts = [received for received in batch if isinstance(received.data, NodeRegistered | NodeReport)]
    registrations = [received.data for received in facts if isinstance(received.data, NodeRegistered)]
    for registration in registrations:
        check_registration(registration, cluster)
    if not facts:
        return

    claimed = [device.uuid for registration in registrations for device in registration.devices]
    others = await repository.holders(uow.connection, claimed) if claimed else set[str]()
    names = {received.record.key for received in facts}
    known = await repository.nodes(uow.connection, names | others)
    fresh = [received for received in facts if _is_news(known.get(received.record.key), received)]

    if not registrations and all(node.state is NodeState.READY for node in known.values()):
        offsets = {received.record.key: received.record.offset for received in fresh if received.record.key in known}
        await repository.save_contacts(uow.connection, offsets, uow.now)
        return
    await _fold(fresh, await repository.with_devices(uow.connection, known), uow, cluster)


def _is_news(node: Node | None, received: Received) -> bool:
    """False for a fact that was folded before: the log may be read again from any offset."""
    return node is None or received.record.offset > node.folded_offset


async def _fold(fresh: Sequence[Received], before: dict[str, Node], uow: UnitOfWork, cluster: str) -> None:
    after = dict(before)
    causes: dict[str, Received] = {}
    for received in fresh:
        fact, name, offset = received.data, received.record.key, received.record.offset
        known = after.get(name)
        if isinstance(fact, NodeRegistered):
            after[name] = register(known, fact, uow.now, offset)
            for moved in _take_devices(after, after[name]):
                causes[moved] = received
        elif known is None:
            _log.warning("report of a node that never registered", node=name)
            continue
        else:
            after[name] = heard(known, uow.now, offset)
        causes[name] = received

    touched = [after[name] for name in sorted(causes)]
    await repository.save_nodes(uow.connection, touched)
    moved = [node for node in touched if node.name not in before or before[node.name].devices != node.devices]
    await repository.replace_devices(uow.connection, moved)
    changed = [n for n in touched if n.name not in before or not n.same_for_others(before[n.name])]
    for node in changed:
        uow.emit(node.to_event(uow.now), cause=causes[node.name].envelope)
    if changed:
        uow.mark_dirty(cluster)


def _take_devices(fleet: dict[str, Node], taker: Node) -> list[str]:
    """A physical device is in one node. The newest registration is right: cards move, and agents say what they see."""
    uuids = frozenset(device.uuid for device in taker.devices)
    losers = [n for n in fleet.values() if n.name != taker.name and any(d.uuid in uuids for d in n.devices)]
    for loser in losers:
        _log.error("devices showed up in another node", node=loser.name, now_in=taker.name)
        fleet[loser.name] = without_devices(loser, uuids)
    return [loser.name for loser in losers]
