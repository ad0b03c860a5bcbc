"""The agent's memory on disk: one SQLite file per node, with the agent as its only user.

A batch of commands, what they caused and the bus position behind them are one transaction, so that after any crash
the agent goes on from a state in which either all of it happened or none. Live allocations and unpublished events are
kept in memory too; a transaction's changes to them are written when it ends, each row once.
"""

import json
import sqlite3
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from yard_agent.journal_rows import COLUMNS, UPSERT, JournaledAllocation, allocation_of, row_of
from yard_agent.journal_schema import prepare
from yard_domain.errors import Permanent, Retryable
from yard_events.base import EventModel, wrap
from yard_events.envelope import Envelope, from_headers
from yard_events.types import TaskWork

_SPOOL = "INSERT INTO spool (publish_seq, topic, key, headers, value) VALUES (?, ?, ?, ?, ?)"
_EVENTS_IN_MEMORY = 4096
"""While the bus is away more than these may wait; older ones are then read from the file."""


class JournalUnusable(Permanent):
    """The file is damaged, of a newer version, or not a journal. The message says what to do."""


class JournalInUse(Retryable):
    """Another agent works with this journal."""


@dataclass(frozen=True, slots=True)
class Position:
    """`next_offset` is the first offset not yet handled, in this incarnation of the topic."""

    incarnation: str
    next_offset: int


class Journal:
    """Open it once per agent; `with journal.transaction():` around every write. Reads are good anywhere.

    `new_journal_id` becomes `journal_id` only when the file is new: an id that changes tells placement that the
    agent lost its memory. Raises JournalUnusable, JournalInUse. Not for use by two threads at the same time.
    """

    def __init__(self, path: Path, *, new_journal_id: str, busy_seconds: float = 2.0) -> None:
        self._live: dict[str, JournaledAllocation] = {}
        self._changed: dict[str, JournaledAllocation] = {}
        self._absent: set[str] = set()
        self._with_new_work: set[str] = set()
        self._spooled: list[Envelope] = []
        self._recent: deque[Envelope] = deque(maxlen=_EVENTS_IN_MEMORY)
        self._last_seq = 0
        self._struck = 0
        path.touch(mode=0o600)
        # check_same_thread: the agent may move all of its calls to one worker thread, one after the other.
        self._db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            self._open(path, new_journal_id)
        except JournalUnusable:
            self.close()
            raise
        except sqlite3.OperationalError as error:
            self.close()
            if "locked" in str(error):
                raise JournalInUse(f"{path}: another agent works with this journal") from error
            raise JournalUnusable(f"{path}: {error}") from error
        except sqlite3.DatabaseError as error:
            self.close()
            raise JournalUnusable(
                f"{path}: {error}. Move the file away: the agent then begins a new journal, and its node's tasks are"
                " taken as lost"
            ) from error

    def _open(self, path: Path, new_journal_id: str) -> None:
        # Exclusive: a second agent on this node is refused. FULL: what is committed survives a power cut.
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._db.execute(f"PRAGMA {pragma}")
        with self.transaction():
            version = prepare(self._db, new_journal_id)
        if version is not None:
            raise JournalUnusable(f"{path}: of version {version}, which this agent does not know")
        self.journal_id = str(self._db.execute("SELECT value FROM meta WHERE name = 'journal_id'").fetchone()[0])
        self._live = {a.allocation_id: a for a in self._stored("WHERE ended_at IS NULL OR emptied = 0")}
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'spool'").fetchone()
        self._last_seq = int(row[0]) if row is not None else 0

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
            self._write_changes()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._last_seq -= len(self._spooled)
            self._forget_changes()
            raise
        self._recent.extend(self._spooled)
        while self._recent and (self._recent[0].publish_seq or 0) <= self._struck:
            self._recent.popleft()
        for allocation_id, allocation in self._changed.items():
            if allocation.live:
                self._live[allocation_id] = allocation
            else:
                self._live.pop(allocation_id, None)
        self._forget_changes()

    def _write_changes(self) -> None:
        if self._changed:
            self._db.executemany(
                UPSERT,
                [
                    row_of(allocation, with_work=name in self._with_new_work)
                    for name, allocation in self._changed.items()
                ],
            )
        if self._spooled:
            self._db.executemany(_SPOOL, [_spool_row(envelope) for envelope in self._spooled])
        if self._struck:
            self._db.execute("DELETE FROM spool WHERE publish_seq <= ?", (self._struck,))

    def _forget_changes(self) -> None:
        self._struck = 0
        self._changed = {}
        self._absent = set()
        self._with_new_work = set()
        self._spooled = []

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

    def forget_position(self, topic: str, partition: int) -> None:
        """It means nothing any more: reading begins with the oldest record there is."""
        self._write("DELETE FROM positions WHERE topic = ? AND partition = ?", (topic, partition))

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
        self._check_open()
        envelope = wrap(
            event,
            event_id=event_id,
            source=source,
            time=time,
            correlation_id=correlation_id,
            causation_id=causation_id,
            publish_seq=self._last_seq + 1,
        )
        self._spooled.append(replace(envelope, extra=extra) if extra else envelope)
        self._last_seq += 1
        return self._last_seq

    def pending(self, limit: int, after_seq: int = 0) -> list[Envelope]:
        """The oldest unpublished events in order, each with its publish_seq."""
        if self._recent and (self._recent[0].publish_seq or 0) <= after_seq + 1:
            found: list[Envelope] = []
            for envelope in self._recent:
                if (envelope.publish_seq or 0) > after_seq:
                    found.append(envelope)
                    if len(found) == limit:
                        break
            return found
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
        self._check_open()
        self._struck = max(self._struck, up_to_seq)

    # --- allocations -------------------------------------------------------------------------------------------------

    def command_is_new(self, allocation_id: str, command_seq: int) -> bool:
        """False for a command at or below the last one recorded for its allocation."""
        known = self.allocation(allocation_id)
        return known is None or command_seq > known.command_seq

    def record_command(
        self,
        allocation_id: str,
        command_seq: int,
        *,
        state: str,
        work: TaskWork | None = None,
        master_addr: str | None = None,
        master_port: int | None = None,
        trace: dict[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """The last command of an allocation and the state it led to. What is None here stays as it was."""
        before = self.allocation(allocation_id)
        if work is not None:
            self._with_new_work.add(allocation_id)
        if before is None:
            fresh = JournaledAllocation(allocation_id, command_seq, state, work, master_addr, master_port)
            self._put(replace(fresh, trace=trace, correlation_id=correlation_id))
            return
        self._put(
            replace(
                before,
                command_seq=max(command_seq, before.command_seq),
                state=state,
                work=work if work is not None else before.work,
                master_addr=master_addr if master_addr is not None else before.master_addr,
                master_port=master_port if master_port is not None else before.master_port,
                trace=trace if trace is not None else before.trace,
                correlation_id=correlation_id if correlation_id is not None else before.correlation_id,
            )
        )

    def set_state(self, allocation_id: str, state: str) -> None:
        self._put(replace(self._known(allocation_id), state=state))

    def record_started(
        self, allocation_id: str, state: str, started_at: datetime, trace: dict[str, str] | None
    ) -> None:
        """It was seen running. `trace` is the context that its process was given, if there is one."""
        before = self._known(allocation_id)
        self._put(replace(before, state=state, started_at=started_at, trace=trace or before.trace))

    def record_stop(self, allocation_id: str, state: str, reason: str, grace_seconds: float) -> None:
        """It was asked to stop. The first reason stands: it is why the task ends."""
        before = self._known(allocation_id)
        why = before.stop_reason if before.stop_reason is not None else reason
        self._put(replace(before, state=state, stop_reason=why, stop_grace_seconds=grace_seconds))

    def record_end(self, allocation_id: str, state: str, ended_at: datetime) -> None:
        """The task is over. Its first end stands: an end that is reported again changes nothing."""
        before = self._known(allocation_id)
        if before.ended_at is None:
            self._put(replace(before, state=state, ended_at=ended_at))

    def record_emptied(self, allocation_id: str) -> None:
        self._put(replace(self._known(allocation_id), emptied=True))

    def allocation(self, allocation_id: str) -> JournaledAllocation | None:
        known = self._changed.get(allocation_id) or self._live.get(allocation_id)
        if known is not None:
            return known
        if allocation_id in self._absent:
            return None
        rows = self._stored("WHERE allocation_id = ?", (allocation_id,))
        if not rows and self._db.in_transaction:
            self._absent.add(allocation_id)  # a command asks several times for what it is about to record
        return rows[0] if rows else None

    def live_allocations(self) -> list[JournaledAllocation]:
        """Those not over, or over and not yet emptied, in order of their ids."""
        found = (self._live | self._changed) if self._changed else self._live
        return [found[allocation_id] for allocation_id in sorted(found) if found[allocation_id].live]

    def allocations(self) -> list[JournaledAllocation]:
        """Live ones and all ended ones that are still remembered."""
        stored = {allocation.allocation_id: allocation for allocation in self._stored("")} | self._changed
        return [stored[allocation_id] for allocation_id in sorted(stored)]

    def prunable(self, *, ended_before: datetime, keep_newest: int, limit: int = 1000) -> list[str]:
        """Allocations that ended and emptied, ended before this time, and are not among the newest so many."""
        rows = self._db.execute(
            "SELECT allocation_id FROM allocations WHERE emptied = 1 AND ended_at < ? AND allocation_id NOT IN"
            " (SELECT allocation_id FROM allocations WHERE ended_at IS NOT NULL AND emptied = 1"
            " ORDER BY ended_at DESC LIMIT ?) ORDER BY ended_at LIMIT ?",
            (ended_before.timestamp(), keep_newest, limit),
        )
        return [str(row[0]) for row in rows]

    def forget(self, allocation_ids: Iterable[str]) -> None:
        """Forget allocations that ended and emptied; others stay.

        Whatever may still be sent for an allocation must have been sent by then: a command for a forgotten one is new.
        """
        self._check_open()
        self._db.executemany(
            "DELETE FROM allocations WHERE allocation_id = ? AND emptied = 1 AND ended_at IS NOT NULL",
            [(allocation_id,) for allocation_id in allocation_ids],
        )

    def _stored(self, where: str, values: Iterable[Any] = ()) -> list[JournaledAllocation]:
        query = f"SELECT {COLUMNS} FROM allocations {where}"  # noqa: S608  both parts are constants of this file
        return [allocation_of(row) for row in self._db.execute(query, tuple(values))]

    def _known(self, allocation_id: str) -> JournaledAllocation:
        known = self.allocation(allocation_id)
        if known is None:
            raise KeyError(f"the journal has no allocation {allocation_id}")
        return known

    def _put(self, allocation: JournaledAllocation) -> None:
        self._check_open()
        self._changed[allocation.allocation_id] = allocation

    def _check_open(self) -> None:
        if not self._db.in_transaction:
            raise RuntimeError("the journal is written inside of a transaction")

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        self._check_open()
        self._db.execute(statement, values)


def _spool_row(envelope: Envelope) -> tuple[Any, ...]:
    headers = json.dumps(envelope.headers(), separators=(",", ":"))
    return (envelope.publish_seq, envelope.topic, envelope.key, headers, envelope.value)
