"""The outbox: where units of work leave their events for a relay, on buses that are not in the same database."""

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from yard_events.envelope import Envelope
from yard_store.bulk import bulk_insert
from yard_store.tables import ServiceTables


class OutboxAppender:
    """Implements `yard_store.ports.EventAppender`.

    Rows get no sequence here: numbers taken before a commit become visible out of order. The relay numbers what is
    committed.
    """

    def __init__(self, tables: ServiceTables) -> None:
        self._table = tables.outbox

    async def append(self, connection: AsyncConnection, events: Sequence[Envelope], now: datetime) -> None:
        rows = [
            {
                "topic": event.topic,
                "key": event.key,
                "headers": json.dumps(event.headers(), separators=(",", ":")),
                "value": event.value,
                "created_at": now,
            }
            for event in events
        ]
        await bulk_insert(connection, self._table, rows)
