"""Pid files of supervised processes, and ending what an earlier supervisor left behind."""

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from yard_runtime.process_identity import process_identity

MARKER = "YARD_SUPERVISED_AS"
"""Environment variable of a supervised process: its pid file. Whoever it starts inherits it."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A process of an earlier supervisor that was still there. `killed`: SIGTERM did not end it within the grace."""

    name: str
    pid: int
    killed: bool


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    pid: int
    identity: str | None

    def is_alive(self) -> bool:
        return self.identity is not None and process_identity(self.pid) == self.identity


def pid_file(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.pid"


def write_pid_file(path: Path, pid: int) -> None:
    """Atomically, so that a reader never sees half of it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have deleted the folder
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps({"pid": pid, "identity": process_identity(pid)}) + "\n")
    unfinished.replace(path)


def end_stragglers(run_dir: Path, grace_seconds: float = 5.0) -> list[Straggler]:
    """End every process that a pid file in `run_dir` names and that is still the same process, and what is left in its
    process group; return them. SIGTERM, the grace, SIGKILL. Blocks up to the grace.

    Not for a folder whose supervisor is alive: take the instance lock first.
    """
    records = [record for path in sorted(run_dir.glob("*.pid")) if (record := _read(path)) is not None]
    alive = [record for record in records if record.is_alive()]
    for record in alive:
        _signal(record.pid, signal.SIGTERM)
    _wait(alive, grace_seconds)
    ended = [Straggler(record.name, record.pid, killed=record.is_alive()) for record in alive]
    for record in alive:
        if record.is_alive():
            _signal(record.pid, signal.SIGKILL)
    for member in _group_members(run_dir, records):
        with suppress(psutil.NoSuchProcess):
            member.kill()
            ended.append(Straggler(f"a child of {_leader(records, member)}", member.pid, killed=True))
    _wait(alive, grace_seconds)
    for path in run_dir.glob("*.pid"):
        path.unlink(missing_ok=True)
    return ended


def _read(path: Path) -> _Record | None:
    try:
        content = json.loads(path.read_text())
        return _Record(path.name.removesuffix(".pid"), int(content["pid"]), content["identity"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # not written by us, or from before a crash of the machine


def _group_members(run_dir: Path, records: Iterable[_Record]) -> list[psutil.Process]:
    """Processes in the group of a recorded one, its leader aside. The number alone would not do, since the group's may
    be somebody else's by now: they must also carry the marker."""
    marks = {record.pid: str(pid_file(run_dir.resolve(), record.name)) for record in records}
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            group = os.getpgid(process.pid)
            if group in marks and process.pid != group and process.environ().get(MARKER) == marks[group]:
                members.append(process)
    return members


def _leader(records: Iterable[_Record], member: psutil.Process) -> str:
    with suppress(ProcessLookupError):
        group = os.getpgid(member.pid)
        return next((record.name for record in records if record.pid == group), str(group))
    return "a supervised process"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(records: list[_Record], limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while any(record.is_alive() for record in records) and time.monotonic() < deadline:
        time.sleep(0.02)  # they are not our children, so their end can only be looked for
