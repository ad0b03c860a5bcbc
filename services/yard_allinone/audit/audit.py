"""Running the checks: what persists in two readings is a finding; what vanishes was only on its way."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from yard_allinone.audit.checks import CHECKS, Check
from yard_store.database_errors import database_errors
from yard_store.ports import Clock

_MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """The offending rows of each check, by their first column."""

    rows: tuple[dict[str, dict[str, Any]], ...]


async def read(engine: AsyncEngine, checks: Sequence[Check] = CHECKS) -> Reading:
    """All checks on one consistent, read-only snapshot."""
    with database_errors():
        async with engine.connect() as connection:
            await connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            found: list[dict[str, dict[str, Any]]] = []
            for check in checks:
                rows = (await connection.execute(sa.text(check.sql))).mappings().all()
                found.append({str(next(iter(row.values()))): _plain(row) for row in rows})
            return Reading(tuple(found))


def _plain(row: Any) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


async def audit(engine: AsyncEngine, clock: Clock, pause_seconds: float, readings: int = 3) -> dict[str, Any]:
    """The report: every check, and findings that stood in every reading, with the rows that prove them.

    Readings stop early once one of them is clean.
    """
    persistent = (await read(engine)).rows
    for _ in range(readings - 1):
        if not any(persistent):
            break
        await clock.sleep(pause_seconds)
        again = (await read(engine)).rows
        persistent = tuple(_same(old, new) for old, new in zip(persistent, again, strict=True))
    findings = [
        {
            "invariant": check.invariant,
            "message": f"broken: {check.title}",
            "count": len(rows),
            "rows": list(rows.values())[:_MOST_ROWS],
        }
        for check, rows in zip(CHECKS, persistent, strict=True)
        if rows
    ]
    return {
        "checked_at": clock.now().isoformat(),
        "checks": [
            {"id": check.invariant, "title": check.title, "ok": not rows}
            for check, rows in zip(CHECKS, persistent, strict=True)
        ],
        "findings": findings,
    }


def _same(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows that say the same in both readings: one that changed is being worked on."""
    return {key: row for key, row in new.items() if old.get(key) == row}
