"""Reading and writing accounts and usage lines in bulk, and the figures that the audit compares with the ledger."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_billing.spans import Account
from yard_billing.tables import AccountRow, UsageLineRow
from yard_events.types import UsageRecorded
from yard_store.bulk import any_of, bulk_insert

ACCOUNTS: sa.Table = AccountRow.__table__  # type: ignore[attr-defined]
USAGE_LINES: sa.Table = UsageLineRow.__table__  # type: ignore[attr-defined]

_ACCOUNT_COLUMNS = tuple(field.name for field in fields(Account))
_CHANGING = ("spans", "open_since", "ledger_time", "released")


async def accounts(connection: AsyncConnection, allocation_ids: Iterable[str]) -> dict[str, Account]:
    statement = sa.select(*(ACCOUNTS.c[name] for name in _ACCOUNT_COLUMNS))
    statement = statement.where(any_of(ACCOUNTS.c.allocation_id, sorted(set(allocation_ids))))
    found = (await connection.execute(statement)).mappings()
    return {row["allocation_id"]: Account(**row) for row in found}


async def save_accounts(connection: AsyncConnection, changed: Sequence[Account]) -> None:
    rows = [{name: getattr(account, name) for name in _ACCOUNT_COLUMNS} for account in changed]
    await bulk_insert(connection, ACCOUNTS, rows, update=_CHANGING)


async def insert_lines(connection: AsyncConnection, lines: Sequence[tuple[UsageRecorded, int]]) -> None:
    """(line, number of its span). A line that exists already is a broken invariant, so the insert fails then."""
    rows: list[dict[str, Any]] = [
        {
            "allocation_id": line.allocation_id,
            "model": line.model,
            "span": span,
            "project_id": line.project_id,
            "queue": line.queue,
            "job_id": line.job_id,
            "attempt": line.attempt,
            "devices": line.devices,
            "since": line.since,
            "until": line.until,
            "device_micros": line.device_micros,
        }
        for line, span in lines
    ]
    await bulk_insert(connection, USAGE_LINES, rows)


BILLED_PER_ALLOCATION = """
SELECT a.allocation_id, a.project_id, a.job_id, a.attempt, a.released, a.open_since IS NOT NULL AS open,
       coalesce(sum(l.device_micros), 0)::bigint AS device_micros
FROM billing.accounts a LEFT JOIN billing.usage_lines l USING (allocation_id)
GROUP BY a.allocation_id
"""
"""For INV-7: what each allocation was billed so far, in device-µs; the ledger says what it was granted. Only where
`open` is false do the two have to be equal."""


@dataclass(frozen=True, slots=True)
class Billed:
    """`device_micros` of the closed spans; `open`: one is running and is not in it."""

    allocation_id: str
    project_id: str
    job_id: str
    attempt: int
    released: bool
    open: bool
    device_micros: int


async def billed_per_allocation(connection: AsyncConnection) -> dict[str, Billed]:
    found = await connection.execute(sa.text(BILLED_PER_ALLOCATION))
    return {row.allocation_id: Billed(*row) for row in found}
