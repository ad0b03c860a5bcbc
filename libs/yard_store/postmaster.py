"""Finding the postmaster of a data folder, and telling it from a process that merely has its old pid."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class LockFile:
    """What `postmaster.pid` says. `status` is `starting`, `ready`, `stopping`, `standby`, or empty while unwritten."""

    pid: int
    socket_dir: str
    status: str


class Postmaster:
    """A running postmaster: holds on to the process, not only to its pid."""

    def __init__(self, process: psutil.Process, database_folder: Path) -> None:
        self._process = process
        self._database_folder = database_folder

    @classmethod
    def of_child(cls, pid: int, database_folder: Path) -> "Postmaster | None":
        """The postmaster that the caller has just started and not yet reaped; None where it has ended already."""
        try:
            return cls(psutil.Process(pid), database_folder)
        except psutil.NoSuchProcess:
            return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """A zombie is dead: where nobody reaps orphans (a container without init) it stays in the process table."""
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def lock_file(self) -> LockFile | None:
        """`postmaster.pid`, once this postmaster has written it."""
        lock = read_lock_file(self._database_folder)
        return lock if lock is not None and lock.pid == self.pid else None

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            self._process.send_signal(number)

    def wait_exit(self, limit_seconds: float) -> bool:
        """Whether it ended within the limit. It is seldom our child, so its end can only be looked for."""
        deadline = time.monotonic() + limit_seconds
        while self.is_alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True


def read_lock_file(database_folder: Path) -> LockFile | None:
    """None where there is none or its first line is not written yet."""
    try:
        lines = (database_folder / "postmaster.pid").read_text(errors="replace").splitlines()
        pid = int(lines[0])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    if pid <= 0:  # a standalone backend writes its pid negated
        return None
    return LockFile(
        pid=pid,
        socket_dir=lines[4].strip() if len(lines) > 4 else "",
        status=lines[7].strip() if len(lines) > 7 else "",
    )


def find_postmaster(database_folder: Path) -> Postmaster | None:
    """The live postmaster of this folder, or None.

    `postmaster.pid` survives a kill and a reboot, and its pid may by then belong to any process. It counts only if
    that process is a `postgres` that was started with this very folder.
    """
    lock = read_lock_file(database_folder)
    if lock is None:
        return None
    try:
        process = psutil.Process(lock.pid)
        arguments = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    if not _is_server_of(arguments, database_folder):
        return None
    found = Postmaster(process, database_folder)
    return found if found.is_alive() else None


def orphaned_backends(cluster_name: str) -> list[psutil.Process]:
    """Server processes whose title carries this cluster name. A backend that computes does not notice for a while
    that its postmaster was killed, and keeps the shared memory; the title is what every user may read of it."""
    title = f"postgres: {cluster_name}: "
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if " ".join(process.info["cmdline"] or ()).startswith(title)
    ]


def _is_server_of(arguments: list[str], database_folder: Path) -> bool:
    if not arguments or Path(arguments[0]).name != "postgres" or "-D" not in arguments[:-1]:
        return False
    named = arguments[arguments.index("-D") + 1]
    return os.path.realpath(named) == os.path.realpath(database_folder)
