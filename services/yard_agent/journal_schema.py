"""The journal's tables, and how a file of an older version becomes one of this."""

import sqlite3

VERSION = 3
FIRST = """
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
SECOND = """
ALTER TABLE allocations ADD COLUMN stop_reason TEXT;
ALTER TABLE allocations ADD COLUMN stop_grace_seconds REAL
"""
THIRD = """
ALTER TABLE allocations ADD COLUMN trace TEXT;
ALTER TABLE allocations ADD COLUMN correlation_id TEXT;
ALTER TABLE allocations ADD COLUMN started_at REAL
"""


def prepare(db: sqlite3.Connection, new_journal_id: str) -> int | None:
    """Inside of a transaction: make the tables, or bring older ones up to date. Returns a version that is not known."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        return version
    for older, script in enumerate((FIRST, SECOND, THIRD)):
        if version <= older:
            for statement in script.split(";\n"):
                db.execute(statement)
    if version == 0:
        db.execute("INSERT INTO meta VALUES ('journal_id', ?)", (new_journal_id,))
    db.execute(f"PRAGMA user_version = {VERSION}")
    return None
