"""The agent's memory: what survives a restart, and in which order."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from yard_agent.journal import Journal, JournalInUse, JournalUnusable, Position
from yard_agent.journal_schema import FIRST, SECOND
from yard_events.base import unwrap
from yard_events.job_document import RunDocument
from yard_events.types import TaskStarted, TaskWork

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TOPIC = "yard.nodes.commands.v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal(path, new_journal_id="first") as opened:
        yield opened


def reopened(journal: Journal, path: Path) -> Journal:
    journal.close()
    return Journal(path, new_journal_id="second")


def started(allocation_id: str = "a", pid: int = 1) -> TaskStarted:
    return TaskStarted(node="n1", observed_at=NOW, allocation_id=allocation_id, pid=pid)


def spool(journal: Journal, pid: int = 1) -> int:
    return journal.spool(started(pid=pid), event_id=f"event-{pid}", source="yard/agent/n1/first", time=NOW)


def work() -> TaskWork:
    return TaskWork(
        job_id="j", project_id="p", name="n", attempt=1, attempt_id="j/1", task_rank=0, world_size=1, local_rank=0,
        local_world_size=1, device_uuids=["GPU-a"], run=RunDocument(command=["true"], env={"A": "ü"}),
    )  # fmt: skip


def test_the_id_stays_with_the_file(journal: Journal, path: Path) -> None:
    assert journal.journal_id == "first"
    with reopened(journal, path) as again:
        assert again.journal_id == "first"
    path.unlink()
    with Journal(path, new_journal_id="third") as lost:
        assert lost.journal_id == "third"
    assert path.stat().st_mode & 0o077 == 0


def test_a_batch_its_effects_and_its_position_are_one(journal: Journal, path: Path) -> None:
    def batch(fails: bool) -> None:
        with journal.transaction():
            journal.record_command("a", 1, state="running", work=work())
            spool(journal)
            journal.advance(TOPIC, 0, Position("i1", 7))
            if fails:
                raise ConnectionError

    with pytest.raises(ConnectionError):
        batch(fails=True)
    assert journal.allocations() == []
    assert journal.pending(10) == []
    assert journal.position(TOPIC, 0) is None
    batch(fails=False)
    with reopened(journal, path) as again:
        assert [allocation.allocation_id for allocation in again.allocations()] == ["a"]
        assert len(again.pending(10)) == 1
        assert again.position(TOPIC, 0) == Position("i1", 7)
        assert again.position(TOPIC, 1) is None


def test_writes_outside_of_a_transaction_are_refused(journal: Journal) -> None:
    with pytest.raises(RuntimeError, match="inside of a transaction"):
        spool(journal)
    with pytest.raises(RuntimeError, match="open already"), journal.transaction(), journal.transaction():
        pass
    with journal.transaction():
        spool(journal)


def test_publish_seq_rises_also_over_published_events_and_restarts(journal: Journal, path: Path) -> None:
    with journal.transaction():
        sequence = [spool(journal, pid) for pid in range(3)]
        journal.mark_published(sequence[-1])
    assert journal.pending(10) == []
    with reopened(journal, path) as again, again.transaction():
        assert spool(again) > sequence[-1]


def test_pending_events_come_whole_and_in_order(journal: Journal) -> None:
    with journal.transaction():
        sequence = [spool(journal, pid) for pid in range(5)]
    first = journal.pending(2)
    assert [envelope.publish_seq for envelope in first] == sequence[:2]
    assert unwrap(first[1]) == started(pid=1)
    assert (first[1].id, first[1].source, first[1].time, first[1].key) == ("event-1", "yard/agent/n1/first", NOW, "n1")
    assert [envelope.publish_seq for envelope in journal.pending(9, after_seq=sequence[2])] == sequence[3:]
    with journal.transaction():
        journal.mark_published(sequence[3])
    assert [envelope.publish_seq for envelope in journal.pending(10)] == sequence[4:]


def test_commands_are_new_once(journal: Journal, path: Path) -> None:
    assert journal.command_is_new("a", 1)
    with journal.transaction():
        journal.record_command("a", 3, state="prepared", work=work())
    for seq, new in ((2, False), (3, False), (4, True)):
        assert journal.command_is_new("a", seq) is new
    with journal.transaction():
        journal.record_end("a", "exited", NOW)
        journal.record_emptied("a")
    with reopened(journal, path) as again:
        assert not again.command_is_new("a", 3), "ended ones are remembered"


def test_an_allocation_keeps_what_later_commands_do_not_say(journal: Journal, path: Path) -> None:
    with journal.transaction():
        journal.record_command("a", 1, state="prepared", work=work(), master_addr="10.0.0.1", master_port=5)
        journal.record_command("a", 2, state="stopping")
    with reopened(journal, path) as again:
        allocation = again.allocation("a")
        assert allocation is not None
        assert (allocation.command_seq, allocation.state, allocation.work) == (2, "stopping", work())
        assert (allocation.master_addr, allocation.master_port) == ("10.0.0.1", 5)
        assert (allocation.emptied, allocation.ended_at) == (False, None)
        assert again.allocation("b") is None


def test_the_first_end_stands(journal: Journal) -> None:
    with journal.transaction():
        journal.record_command("a", 1, state="running")
        journal.record_end("a", "exited", NOW)
        journal.record_end("a", "lost", NOW + timedelta(hours=1))
    allocation = journal.allocation("a")
    assert allocation is not None
    assert (allocation.state, allocation.ended_at) == ("exited", NOW)


def test_live_is_what_has_not_ended_and_emptied(journal: Journal) -> None:
    with journal.transaction():
        for name in ("runs", "ended", "over"):
            journal.record_command(name, 1, state="running")
        journal.record_end("ended", "exited", NOW)
        journal.record_end("over", "exited", NOW)
        journal.record_emptied("over")
    assert [allocation.allocation_id for allocation in journal.live_allocations()] == ["ended", "runs"]
    assert len(journal.allocations()) == 3


def test_what_is_not_in_the_journal_cannot_change(journal: Journal) -> None:
    with pytest.raises(KeyError), journal.transaction():
        journal.record_end("a", "exited", NOW)


def test_pruning_takes_only_the_old_and_only_beyond_the_newest(journal: Journal) -> None:
    with journal.transaction():
        for day in range(6):
            journal.record_command(f"a{day}", 1, state="running")
            journal.record_end(f"a{day}", "exited", NOW + timedelta(days=day))
            if day != 0:
                journal.record_emptied(f"a{day}")
    old = NOW + timedelta(days=3)
    assert journal.prunable(ended_before=old, keep_newest=4) == ["a1"]
    assert journal.prunable(ended_before=old, keep_newest=0, limit=1) == ["a1"], "the oldest first"
    with journal.transaction():
        journal.forget(["a0", "a1"])
    assert [allocation.allocation_id for allocation in journal.allocations()] == ["a0", "a2", "a3", "a4", "a5"]
    assert journal.prunable(ended_before=old, keep_newest=0) == ["a2"]


def test_the_first_reason_to_stop_stands_and_the_last_grace(journal: Journal, path: Path) -> None:
    with journal.transaction():
        journal.record_command("a", 1, state="running", work=work())
        journal.record_stop("a", "stopping", "output_limit", 5.0)
    with journal.transaction():
        journal.record_stop("a", "stopping", "cancelled", 30.0)
    with reopened(journal, path) as again:
        [allocation] = again.live_allocations()
        assert (allocation.state, allocation.stop_reason, allocation.stop_grace_seconds) == (
            "stopping",
            "output_limit",
            30.0,
        )
        assert allocation.work == work()


def test_memory_forgets_what_was_rolled_back(journal: Journal, path: Path) -> None:
    with journal.transaction():
        journal.record_command("a", 1, state="running", work=work())
        spool(journal, 1)
    with pytest.raises(ConnectionError), journal.transaction():
        journal.set_state("a", "stopping")
        journal.record_command("b", 1, state="running")
        spool(journal, 2)
        assert [a.allocation_id for a in journal.live_allocations()] == ["a", "b"]
        raise ConnectionError
    assert [(a.allocation_id, a.state) for a in journal.live_allocations()] == [("a", "running")]
    assert journal.command_is_new("b", 1)
    with journal.transaction():
        assert spool(journal, 3) == 2
    assert [unwrap(envelope) for envelope in journal.pending(9)] == [started(pid=1), started(pid=3)]
    with reopened(journal, path) as again:
        assert [unwrap(envelope) for envelope in again.pending(9)] == [started(pid=1), started(pid=3)]


def test_more_events_than_memory_holds_come_whole_and_in_order(journal: Journal) -> None:
    for first in range(0, 6000, 1000):
        with journal.transaction():
            for pid in range(first, first + 1000):
                spool(journal, pid)
    seen: list[int] = []
    while found := journal.pending(700, after_seq=len(seen)):
        seen += [envelope.publish_seq or 0 for envelope in found]
    assert seen == list(range(1, 6001))


def test_a_journal_of_the_first_version_is_read(path: Path) -> None:
    with sqlite3.connect(path) as db:
        for statement in FIRST.split(";\n"):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('journal_id', 'old')")
        db.execute("INSERT INTO allocations (allocation_id, command_seq, state) VALUES ('a', 1, 'running')")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with Journal(path, new_journal_id="new") as journal:
        assert journal.journal_id == "old"
        assert [(a.allocation_id, a.stop_reason) for a in journal.live_allocations()] == [("a", None)]


def test_a_journal_of_the_second_version_goes_on_with_traces(path: Path) -> None:
    with sqlite3.connect(path) as db:
        for statement in [*FIRST.split(";\n"), *SECOND.split(";\n")]:
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('journal_id', 'old')")
        db.execute("INSERT INTO allocations (allocation_id, command_seq, state) VALUES ('a', 1, 'starting')")
        db.execute("PRAGMA user_version = 2")
    db.close()
    with Journal(path, new_journal_id="new") as journal:
        [known] = journal.live_allocations()
        assert (known.trace, known.correlation_id, known.started_at) == (None, None, None)
        with journal.transaction():
            journal.record_started("a", "running", NOW, {"traceparent": "t"})
    with Journal(path, new_journal_id="new") as journal:
        [known] = journal.live_allocations()
        assert (known.state, known.trace, known.started_at) == ("running", {"traceparent": "t"}, NOW)


def test_the_trace_of_the_last_command_counts_until_the_task_is_started(journal: Journal, path: Path) -> None:
    with journal.transaction():
        journal.record_command("a", 1, state="prepared", trace={"traceparent": "prepare"}, correlation_id="c")
        journal.record_command("a", 2, state="starting", trace={"traceparent": "start"})
        journal.record_command("b", 1, state="starting", trace={"traceparent": "start"})
        journal.record_started("b", "running", NOW, None)
    with journal.transaction():
        journal.record_command("b", 2, state="stopping")
    with reopened(journal, path) as again:
        found = [(a.trace, a.correlation_id, a.started_at) for a in again.live_allocations()]
    assert found == [({"traceparent": "start"}, "c", None), ({"traceparent": "start"}, None, NOW)]


def test_a_journal_of_a_newer_version_is_refused(journal: Journal, path: Path) -> None:
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(JournalUnusable, match="of version 99"):
        Journal(path, new_journal_id="x")


def test_a_second_agent_is_refused(journal: Journal, path: Path) -> None:
    with pytest.raises(JournalInUse):
        Journal(path, new_journal_id="x", busy_seconds=0)
    with journal.transaction():
        spool(journal)


def test_a_damaged_file_says_what_to_do(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 500)
    with pytest.raises(JournalUnusable, match="Move the file away"):
        Journal(path, new_journal_id="x")
