"""The agent's memory on disk: one SQLite file per node, with the agent as its only user.

A batch of commands, what they caused and the bus position behind them are one transaction, so that after any crash
the agent goes on from a state in which either all of it happened or none.
"""

import json
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from yard_domain.errors import Permanent, Retryable
from yard_events.base import EventModel, wrap
from yard_events.envelope import Envelope, from_headers
from yard_events.types import TaskWork

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE positions (
    topic TEXT, partition INTEGER, incarnation TEXT NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
-- AUTOINCREMENT: a number is never given again, not even after the rows of all published events are gone.
CREATE TABLE spool (
    publish_seq INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL, key TEXT NOT NULL, headers TEXT NOT NULL, value BLOB NOT NULL
);
CREATE TABLE allocations (
    allocation_id TEXT PRIMARY KEY, command_seq INTEGER NOT NULL, state TEXT NOT NULL, work TEXT,
    master_addr TEXT, master_port INTEGER, emptied INTEGER NOT NULL DEFAULT 0, ended_at REAL
) WITHOUT ROWID;
CREATE INDEX allocations_live ON allocations (allocation_id) WHERE ended_at IS NULL OR emptied = 0;
CREATE INDEX allocations_ended ON allocations (ended_at) WHERE ended_at IS NOT NULL AND emptied = 1;
"""
_COLUMNS = "allocation_id, command_seq, state, work, master_addr, master_port, emptied, ended_at"


class JournalUnusable(Permanent):
    """The file is damaged, of a newer version, or not a journal. The message says what to do."""


class JournalInUse(Retryable):
    """Another agent works with this journal."""


@dataclass(frozen=True, slots=True)
class Position:
    """`next_offset` is the first offset not yet handled, in this incarnation of the topic."""

    incarnation: str
    next_offset: int


@dataclass(frozen=True, slots=True)
class JournaledAllocation:
    """`state` is the caller's word. `ended_at` stays None until the task is over; then `emptied` is what is missing.
    `work` is None when all that was ever seen is a stop."""

    allocation_id: str
    command_seq: int
    state: str
    work: TaskWork | None
    master_addr: str | None
    master_port: int | None
    emptied: bool
    ended_at: datetime | None


class Journal:
    """Open it once per agent; `with journal.transaction():` around every write. Reads are good anywhere.

    `new_journal_id` becomes `journal_id` only when the file is new: an id that changes tells placement that the
    agent lost its memory. Raises JournalUnusable, JournalInUse. Not for use by two threads at the same time.
    """

    def __init__(self, path: Path, *, new_journal_id: str, busy_seconds: float = 2.0) -> None:
        self._path = path
        try:
            path.touch(mode=0o600)
            # check_same_thread: the agent may move all of its calls to one worker thread, one after the other.
            self._db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
            # Exclusive: a second agent on this node is refused. FULL: what is committed survives a power cut.
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
                self._db.execute(f"PRAGMA {pragma}")
            with self.transaction():
                self._prepare(new_journal_id)
            self.journal_id = str(self._db.execute("SELECT value FROM meta WHERE name = 'journal_id'").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise JournalInUse(f"{path}: another agent works with this journal") from error
            raise JournalUnusable(f"{path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise JournalUnusable(
                f"{path}: {error}. Move the file away: the agent then begins a new journal, and its node's tasks are"
                " taken as lost"
            ) from error

    def _prepare(self, new_journal_id: str) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
            self._db.execute("INSERT INTO meta VALUES ('journal_id', ?)", (new_journal_id,))
            self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        elif version != _SCHEMA_VERSION:
            raise JournalUnusable(f"{self._path}: of version {version}, this agent knows {_SCHEMA_VERSION}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """All of the block is on disk when it leaves, or, after an error, none of it. Does not nest."""
        if self._db.in_transaction:
            raise RuntimeError("a transaction of the journal is open already")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def remembered(self, name: str) -> str | None:
        """A named value of the node, such as the boot id that the journal was last used under."""
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row is not None else None

    def remember(self, name: str, value: str) -> None:
        self._write("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))

    # --- the bus position --------------------------------------------------------------------------------------------

    def position(self, topic: str, partition: int) -> Position | None:
        """Where to go on reading; None before the first batch."""
        row = self._db.execute(
            "SELECT incarnation, next_offset FROM positions WHERE topic = ? AND partition = ?", (topic, partition)
        ).fetchone()
        return Position(*row) if row is not None else None

    def advance(self, topic: str, partition: int, position: Position) -> None:
        self._write(
            "INSERT INTO positions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET incarnation = excluded.incarnation, next_offset = excluded.next_offset",
            (topic, partition, position.incarnation, position.next_offset),
        )

    # --- events on their way out -------------------------------------------------------------------------------------

    def spool(
        self,
        event: EventModel,
        *,
        event_id: str,
        source: str,
        time: datetime,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        extra: dict[str, str] | None = None,
    ) -> int:
        """Queue an event for publication, after all queued before; returns its publish_seq.

        `source` must change with `journal_id`: a new journal counts from 1 again, and consumers drop what is not above
        the highest they saw of a source.
        """
        envelope = wrap(
            event, event_id=event_id, source=source, time=time, correlation_id=correlation_id, causation_id=causation_id
        )
        headers = json.dumps(envelope.headers() | (extra or {}), separators=(",", ":"))
        cursor = self._write(
            "INSERT INTO spool (topic, key, headers, value) VALUES (?, ?, ?, ?)",
            (envelope.topic, envelope.key, headers, envelope.value),
        )
        return int(cursor.lastrowid or 0)

    def pending(self, limit: int, after_seq: int = 0) -> list[Envelope]:
        """The oldest unpublished events in order, each with its publish_seq."""
        rows = self._db.execute(
            "SELECT publish_seq, topic, key, headers, value FROM spool WHERE publish_seq > ?"
            " ORDER BY publish_seq LIMIT ?",
            (after_seq, limit),
        )
        return [
            from_headers(topic, key, json.loads(headers) | {"yard_publishseq": str(publish_seq)}, value)
            for publish_seq, topic, key, headers, value in rows
        ]

    def mark_published(self, up_to_seq: int) -> None:
        """The bus has everything up to and including this number."""
        self._write("DELETE FROM spool WHERE publish_seq <= ?", (up_to_seq,))

    # --- allocations -------------------------------------------------------------------------------------------------

    def command_is_new(self, allocation_id: str, command_seq: int) -> bool:
        """False for a command at or below the last one recorded for its allocation."""
        row = self._db.execute(
            "SELECT command_seq FROM allocations WHERE allocation_id = ?", (allocation_id,)
        ).fetchone()
        return row is None or command_seq > row[0]

    def record_command(
        self,
        allocation_id: str,
        command_seq: int,
        *,
        state: str,
        work: TaskWork | None = None,
        master_addr: str | None = None,
        master_port: int | None = None,
    ) -> None:
        """The last command of an allocation and the state it led to. What is None here stays as it was."""
        self._write(
            "INSERT INTO allocations (allocation_id, command_seq, state, work, master_addr, master_port)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET command_seq = max(command_seq, excluded.command_seq),"
            " state = excluded.state, work = coalesce(excluded.work, work),"
            " master_addr = coalesce(excluded.master_addr, master_addr),"
            " master_port = coalesce(excluded.master_port, master_port)",
            (allocation_id, command_seq, state, _work_text(work), master_addr, master_port),
        )

    def set_state(self, allocation_id: str, state: str) -> None:
        self._change("UPDATE allocations SET state = ? WHERE allocation_id = ?", (state, allocation_id))

    def record_end(self, allocation_id: str, state: str, ended_at: datetime) -> None:
        """The task is over. Its first end stands: an end that is reported again changes nothing."""
        self._change(
            "UPDATE allocations SET state = iif(ended_at IS NULL, ?, state), ended_at = coalesce(ended_at, ?)"
            " WHERE allocation_id = ?",
            (state, ended_at.timestamp(), allocation_id),
        )

    def record_emptied(self, allocation_id: str) -> None:
        self._change("UPDATE allocations SET emptied = 1 WHERE allocation_id = ?", (allocation_id,))

    def allocation(self, allocation_id: str) -> JournaledAllocation | None:
        rows = self._allocations("WHERE allocation_id = ?", (allocation_id,))
        return rows[0] if rows else None

    def live_allocations(self) -> list[JournaledAllocation]:
        """Those not over, or over and not yet emptied."""
        return self._allocations("WHERE ended_at IS NULL OR emptied = 0")

    def allocations(self) -> list[JournaledAllocation]:
        """Live ones and all ended ones that are still remembered."""
        return self._allocations("ORDER BY allocation_id")

    def prune_ended(self, *, ended_before: datetime, keep_newest: int) -> int:
        """Forget allocations that ended and emptied, ended before this time, and are not among the newest so many.

        Whatever may still be sent for an allocation must have been sent by then: a command for a forgotten one is new.
        """
        cursor = self._write(
            "DELETE FROM allocations WHERE emptied = 1 AND ended_at < ? AND allocation_id NOT IN (SELECT allocation_id"
            " FROM allocations WHERE ended_at IS NOT NULL AND emptied = 1 ORDER BY ended_at DESC LIMIT ?)",
            (ended_before.timestamp(), keep_newest),
        )
        return cursor.rowcount

    def _allocations(self, where: str, values: Iterable[Any] = ()) -> list[JournaledAllocation]:
        query = f"SELECT {_COLUMNS} FROM allocations {where}"  # noqa: S608  both parts are constants of this file
        return [_allocation(row) for row in self._db.execute(query, tuple(values))]

    def _write(self, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        if not self._db.in_transaction:
            raise RuntimeError("the journal is written inside of a transaction")
        return self._db.execute(statement, values)

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        if self._write(statement, values).rowcount == 0:
            raise KeyError(f"the journal has no allocation {values[-1]}")


def _work_text(work: TaskWork | None) -> str | None:
    return work.model_dump_json(exclude_none=True) if work is not None else None


def _allocation(row: tuple[Any, ...]) -> JournaledAllocation:
    allocation_id, command_seq, state, work, master_addr, master_port, emptied, ended_at = row
    return JournaledAllocation(
        allocation_id,
        command_seq,
        state,
        TaskWork.model_validate_json(work) if work is not None else None,
        master_addr,
        master_port,
        bool(emptied),
        datetime.fromtimestamp(ended_at, UTC) if ended_at is not None else None,
    )
