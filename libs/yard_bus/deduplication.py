"""Deduplication, the whole of it: the highest publish sequence per producer and partition, beside the offset."""

from sqlalchemy.ext.asyncio import AsyncConnection

from yard_bus.protocol import PartitionRef, Record
from yard_events.envelope import publish_sequence
from yard_store.bulk import bulk_insert
from yard_store.tables import ServiceTables


class SeenSequences:
    """The sequences that one consumer of one partition has seen. Records without one come from transactions and are
    never doubled."""

    def __init__(self, tables: ServiceTables, ref: PartitionRef) -> None:
        self._table = tables.producers
        self._ref = ref
        self._last: dict[str, int] = {}
        self._unsaved: dict[str, int] = {}

    async def load(self, connection: AsyncConnection) -> None:
        t = self._table
        found = await connection.execute(
            t.select().where(t.c.topic == self._ref.topic, t.c.partition == self._ref.partition)
        )
        self._last = {row.source: row.last_seq for row in found}
        self._unsaved = {}

    def is_new(self, record: Record) -> bool:
        """False for a double. Remembers the sequence for `save`."""
        try:
            sequence = publish_sequence(record.headers)
        except ValueError:
            return True  # the codec refuses it, with a message; here nothing is known about it
        if sequence is None:
            return True
        source = record.headers.get("ce_source", "")
        if sequence <= max(self._last.get(source, -1), self._unsaved.get(source, -1)):
            return False
        self._unsaved[source] = sequence
        return True

    async def save(self, connection: AsyncConnection) -> None:
        rows = [
            {"topic": self._ref.topic, "partition": self._ref.partition, "source": source, "last_seq": sequence}
            for source, sequence in sorted(self._unsaved.items())
        ]
        await bulk_insert(connection, self._table, rows, update=["last_seq"])

    def saved(self) -> None:
        """The transaction committed."""
        self._last.update(self._unsaved)
        self._unsaved = {}

    def forget_unsaved(self) -> None:
        """The transaction did not commit, or nobody knows."""
        self._unsaved = {}
