"""What agents saw of tasks, folded into the ledger in one statement, however many facts a batch holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_events.types import DevicesEmptied, TaskExited, TaskReady, TaskStarted

TaskFact = TaskReady | TaskStarted | TaskExited | DevicesEmptied
TASK_FACTS = (TaskReady, TaskStarted, TaskExited, DevicesEmptied)


@dataclass(slots=True)
class Seen:
    """All that a batch says about one allocation."""

    allocation_id: str
    ready: bool = False
    master_addr: str | None = None
    master_port: int | None = None
    started: bool = False
    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None
    emptied: bool = False

    def fold(self, fact: TaskFact) -> None:
        """The first end counts; a task ends once."""
        if isinstance(fact, TaskReady):
            self.ready, self.master_addr, self.master_port = True, fact.master_addr, fact.master_port
        elif isinstance(fact, TaskStarted):
            self.started = True
        elif isinstance(fact, DevicesEmptied):
            self.emptied = True
        elif self.outcome is None:
            self.outcome, self.reason = fact.outcome, fact.reason
            self.exit_code, self.signal, self.detail = fact.exit_code, fact.signal, fact.detail


_TYPES: dict[str, tuple[str, type[Any]]] = {
    "allocation_id": ("text", sa.Text),
    "ready": ("bool", sa.Boolean),
    "master_addr": ("text", sa.Text),
    "master_port": ("int", sa.Integer),
    "started": ("bool", sa.Boolean),
    "outcome": ("text", sa.Text),
    "reason": ("text", sa.Text),
    "exit_code": ("int", sa.Integer),
    "signal": ("int", sa.Integer),
    "detail": ("text", sa.Text),
    "emptied": ("bool", sa.Boolean),
}
_UNNESTED = ", ".join(f"CAST(:{name} AS {kind}[])" for name, (kind, _) in _TYPES.items())
_END = ("outcome", "reason", "exit_code", "signal", "detail")
_SETS = ", ".join(
    [
        *(f"{name} = a.{name} OR u.{name}" for name in ("ready", "started", "emptied")),
        *(f"{name} = coalesce(a.{name}, u.{name})" for name in ("master_addr", "master_port")),
        *(f"{name} = CASE WHEN a.outcome IS NULL THEN u.{name} ELSE a.{name} END" for name in _END),
        "state = CASE WHEN coalesce(a.outcome, u.outcome) IS NULL THEN a.state ELSE 'releasing' END",
    ]
)
# Only what is news: a fact that comes twice, or after the release, touches nothing and wakes nobody.
_FOLD = sa.text(
    f"WITH news AS (UPDATE placement.allocations a SET {_SETS} "  # noqa: S608  made of constants
    f"FROM unnest({_UNNESTED}) AS u({', '.join(_TYPES)}) "
    "WHERE a.allocation_id = u.allocation_id AND a.released_at IS NULL AND (u.ready AND NOT a.ready "
    "  OR u.started AND NOT a.started OR u.emptied AND NOT a.emptied OR u.outcome IS NOT NULL AND a.outcome IS NULL) "
    "RETURNING a.attempt_id) "
    "UPDATE placement.attempts SET attention = true WHERE attempt_id IN (SELECT attempt_id FROM news)"
).bindparams(*(sa.bindparam(name, type_=ARRAY(kind)) for name, (_, kind) in _TYPES.items()))


async def fold_task_facts(connection: AsyncConnection, facts: Iterable[TaskFact]) -> bool:
    """True when something about a live allocation was news; its attempt then has the cycle's attention."""
    seen: dict[str, Seen] = {}
    for fact in facts:
        seen.setdefault(fact.allocation_id, Seen(fact.allocation_id)).fold(fact)
    if not seen:
        return False
    columns = {name: [getattr(item, name) for item in seen.values()] for name in _TYPES}
    return (await connection.execute(_FOLD, columns)).rowcount > 0
