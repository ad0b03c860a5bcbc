"""Which silence means a dead node, and which means that the control plane does not hear. Pure: no clock, no I/O.

Silence of a node is counted from its last contact, or from the moment inventory began to listen when that is later:
what happened while nobody listened says nothing about a node. When every node of a cluster is silent at once, the
likelier cause is on this side, so nobody is declared lost until one of them is heard again, and for a grace after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from yard_domain.states import NodeState

FEWEST_FOR_A_FREEZE = 2
"""With one live node "all are silent" is true whenever it is silent: that says nothing about the control plane."""


@dataclass(frozen=True, slots=True)
class Limits:
    suspect_after: timedelta
    lost_after: timedelta
    recovery_grace: timedelta


@dataclass(frozen=True, slots=True)
class Watch:
    """One cluster under observation. `since`: listening without a break from then on."""

    since: datetime
    frozen_since: datetime | None = None
    grace_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Contact:
    name: str
    state: NodeState
    last_contact: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """`changes`: node → its new state. `next_look`: when time can change the verdict; None: not before a contact."""

    watch: Watch
    changes: dict[str, NodeState]
    next_look: datetime | None


def judge(watch: Watch, contacts: Sequence[Contact], now: datetime, limits: Limits) -> Verdict:
    """Judge a cluster's nodes at `now`. A node only gets worse here; contact, not time, makes it ready again."""
    live = [contact for contact in contacts if contact.state is not NodeState.LOST]
    heard = {contact.name: max(contact.last_contact, watch.since) for contact in live}
    silent = {name for name, at in heard.items() if now - at >= limits.suspect_after}
    all_silent = len(live) >= FEWEST_FOR_A_FREEZE and len(silent) == len(live)
    newest = max((contact.last_contact for contact in live), default=None)
    watch = _freeze_or_thaw(watch, all_silent, newest, now, limits)

    changes: dict[str, NodeState] = {}
    looks: list[datetime] = []
    for contact in live:
        lost_at = _lost_at(watch, heard[contact.name], limits)
        if lost_at is not None and lost_at <= now:
            changes[contact.name] = NodeState.LOST
            continue
        suspect = contact.name in silent or contact.state is NodeState.SUSPECT
        if suspect and contact.state is not NodeState.SUSPECT:
            changes[contact.name] = NodeState.SUSPECT
        look = lost_at if suspect else heard[contact.name] + limits.suspect_after
        if look is not None:
            looks.append(look)
    return Verdict(watch, changes, min(looks, default=None))


def _freeze_or_thaw(watch: Watch, all_silent: bool, newest: datetime | None, now: datetime, limits: Limits) -> Watch:
    """Only a contact ends a freeze: neither time nor a restart of inventory proves that nodes are heard again."""
    if all_silent:
        return watch if watch.frozen_since is not None else replace(watch, frozen_since=now)
    if watch.frozen_since is not None and newest is not None and newest > watch.frozen_since:
        return replace(watch, frozen_since=None, grace_until=now + limits.recovery_grace)
    return watch


def _lost_at(watch: Watch, heard: datetime, limits: Limits) -> datetime | None:
    """When a node heard at `heard` is lost; None while frozen."""
    if watch.frozen_since is not None:
        return None
    lost_at = heard + limits.lost_after
    return lost_at if watch.grace_until is None else max(lost_at, watch.grace_until)
