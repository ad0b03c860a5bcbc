"""An embedded PostgreSQL: the programs come from a wheel, the data lies in one folder, clients come by Unix socket.

The data folder holds everything: `pgdata/` (the database), `log/` (one file a weekday), two lock files and the socket.
The server runs in a session of its own and outlives whoever started it; a later start attaches to it again.
"""

import errno
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from yard_domain.errors import Permanent, Retryable
from yard_store.embedded_account import Account, EmbeddedUnavailable, account_for, programs_folder
from yard_store.embedded_configuration import DURABLE_TUNING, write_configuration
from yard_store.embedded_folder import DATABASE, PORT, SUPERUSER, DataFolder, DataFolderUnusable, DataFolderVersion
from yard_store.embedded_log import LogTail
from yard_store.folder_lock import FolderLockHeld, folder_lock
from yard_store.postmaster import Postmaster, find_postmaster, orphaned_backends

__all__ = [
    "DataFolderUnusable",
    "DataFolderVersion",
    "EmbeddedPostgres",
    "EmbeddedSettings",
    "EmbeddedUnavailable",
    "PostgresNotRunning",
]

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
# Long enough for a backend to notice that its postmaster is gone, unless it computes and never looks.
_ORPHAN_GRACE_SECONDS = 1.0
_CREATE_DATABASE = f"""
SELECT current_setting('data_directory');
SELECT 'CREATE DATABASE {DATABASE}' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{DATABASE}')\\gexec
"""  # noqa: S608
_PROGRAM_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


class PostgresNotRunning(Retryable):
    """The server did not start, did not answer or did not stop; the message ends with what it logged."""


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """`data_dir` is a folder of the database's own, for example `D/postgres`; it is made where it is missing.

    `start_limit_seconds` bounds the wait for a server that is alive but not ready: crash recovery replays what was
    written since the last checkpoint, and that can take minutes on a slow disk.
    """

    data_dir: Path
    major_version: int = 18
    tuning: Mapping[str, str] = field(default_factory=lambda: DURABLE_TUNING)
    start_limit_seconds: float = 600.0
    stop_limit_seconds: float = 60.0


class EmbeddedPostgres:
    """One server on one data folder. Calls block; from a coroutine use `asyncio.to_thread`."""

    def __init__(self, settings: EmbeddedSettings) -> None:
        self._settings = settings
        self._folder = DataFolder(settings.data_dir.expanduser().resolve(), settings.major_version)
        self._data_dir = self._folder.path
        self._database_folder = self._folder.database
        self._log = LogTail(self._folder.log)
        self._child: subprocess.Popen[bytes] | None = None
        self._postmaster: Postmaster | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it is alive."""
        return self._postmaster.pid if self.is_alive() and self._postmaster is not None else None

    def is_alive(self) -> bool:
        """Whether the postmaster that this object started or attached to (else: any that there is) is alive."""
        if self._child is not None:
            self._child.poll()  # reaps it, so that a dead server does not stay in the process table
        if self._postmaster is None:
            self._postmaster = find_postmaster(self._database_folder)
        return self._postmaster is not None and self._postmaster.is_alive()

    def ensure_running(self) -> str:
        """Initialise, start or attach, whatever is needed; return the DSN of the database `gpuyard`.

        Raises `DataFolderVersion`, `DataFolderUnusable`, `EmbeddedUnavailable` or `PostgresNotRunning`. Calls at the
        same time, from any number of processes, take turns.
        """
        deadline = time.monotonic() + self._settings.start_limit_seconds
        try:
            programs = programs_folder(self._settings.major_version)
            account = self._folder.prepare(programs)
            with folder_lock(self._folder.setup_lock, account, self._settings.start_limit_seconds):
                self._folder.refuse_other_version()
                postmaster = find_postmaster(self._database_folder)
                if postmaster is None or not self._becomes_ready(postmaster, deadline):
                    postmaster = self._start(programs, account, deadline)
                socket_dir = self._socket_dir_of(postmaster)
                self._ensure_database(programs, account, socket_dir, postmaster, deadline)
        except FolderLockHeld as error:
            raise PostgresNotRunning(
                f"{error}; if no gpuyard runs on this machine, one in another container uses {self._data_dir}"
            ) from error
        except OSError as error:
            raise self._explained(error) from error
        self._postmaster = postmaster
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={urllib.parse.quote(str(socket_dir))}"

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, also one that somebody else started. `smart` waits for clients, `fast` ends them,
        `immediate` leaves crash recovery to the next start; each becomes `immediate` past the stop limit.

        Raises `PostgresNotRunning` where it is alive even then.
        """
        if not self._data_dir.is_dir():
            return
        account = account_for(self._database_folder)
        with folder_lock(self._folder.setup_lock, account, self._settings.start_limit_seconds):
            postmaster = find_postmaster(self._database_folder)
            if postmaster is None and self._child is not None and self._child.poll() is None:
                postmaster = Postmaster.of_child(self._child.pid, self._database_folder)  # before its lock file
            if postmaster is not None:
                self._end(postmaster, mode)
            if self._child is not None:
                self._child.wait()
                self._child = None
            self._postmaster = None
            self._folder.remove_runtime_files()

    # Starting

    def _start(self, programs: Path, account: Account, deadline: float) -> Postmaster:
        # The server inherits this lock and its children from it: free means that no process of an earlier server is
        # left, in whatever container. Only then is it safe to remove what an earlier one left behind.
        self._end_orphans()
        with folder_lock(self._folder.server_lock, account, limit_seconds=10) as lock_descriptor:
            if not self._database_folder.exists():
                self._initialise(programs, account, lock_descriptor)
            self._folder.repair_ownership(account)
            socket_dir = self._folder.socket_dir(account)
            for stale in (self._database_folder / "postmaster.pid", socket_dir / f".s.PGSQL.{PORT}.lock"):
                # Either names a pid that may belong to any process by now, and the server would refuse to start.
                stale.unlink(missing_ok=True)
            write_configuration(
                self._database_folder,
                account,
                tuning=self._settings.tuning,
                major_version=self._settings.major_version,
                socket_dir=socket_dir,
                cluster_name=self._folder.cluster_name,
            )
            return self._launch(programs, account, lock_descriptor, deadline)

    def _launch(self, programs: Path, account: Account, lock_descriptor: int, deadline: float) -> Postmaster:
        if self._child is not None:
            self._child.poll()  # an earlier server of ours that ended and that nobody has reaped yet
        self._log.mark()
        with open(self._log.start_file, "wb") as output:
            self._child = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self._database_folder)],
                cwd=self._data_dir,
                env=_PROGRAM_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock_descriptor,),
                **account.popen_arguments(),
            )
        postmaster = Postmaster.of_child(self._child.pid, self._database_folder)
        if postmaster is None or not self._becomes_ready(postmaster, deadline):
            status = self._child.wait()
            raise PostgresNotRunning(self._with_log(f"PostgreSQL ended while it started (status {status})"))
        return postmaster

    def _becomes_ready(self, postmaster: Postmaster, deadline: float) -> bool:
        """True once it takes connections, false once it has ended. Raises `PostgresNotRunning` past the deadline."""
        while postmaster.is_alive():
            lock = postmaster.lock_file()
            if lock is not None and lock.status == "ready":
                return True
            if time.monotonic() >= deadline:
                state = lock.status if lock is not None and lock.status else "starting"
                raise PostgresNotRunning(
                    self._with_log(f"PostgreSQL (pid {postmaster.pid}) is still {state} and not ready")
                )
            time.sleep(0.01)
        return False

    def _end_orphans(self) -> None:
        deadline = time.monotonic() + _ORPHAN_GRACE_SECONDS
        while orphans := orphaned_backends(self._folder.cluster_name):
            if time.monotonic() >= deadline:
                for process in orphans:
                    # Their postmaster is gone: nothing they do can be committed any more.
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    def _initialise(self, programs: Path, account: Account, lock_descriptor: int) -> None:
        """`initdb` in a folder of another name, renamed when it is complete: a crash in between leaves no half of a
        database behind, only a folder that the next start removes."""
        unfinished = self._folder.unfinished
        if unfinished.exists():
            shutil.rmtree(unfinished)
        arguments = [str(programs / "initdb"), "-D", str(unfinished), "-U", SUPERUSER, "--encoding=UTF8", "--locale=C"]
        arguments += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        if self._settings.major_version >= 17:
            # Sorting and case do not depend on the machine's locales, so a folder can move to another machine.
            arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Named here so that initdb need not probe for them.
        arguments += ["--set", "timezone=UTC", "--set", "log_timezone=UTC"]
        done = subprocess.run(
            arguments,
            check=False,
            cwd=self._data_dir,
            env=_PROGRAM_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(lock_descriptor,),
            **account.popen_arguments(),
        )
        if done.returncode != 0:
            said = "\n".join(done.stdout.decode(errors="replace").splitlines()[-8:])
            raise PostgresNotRunning(_explained_text(f"initdb failed in {self._data_dir}:\n{said}", self._data_dir))
        unfinished.rename(self._database_folder)
        _sync_folder(self._data_dir)

    def _ensure_database(
        self, programs: Path, account: Account, socket_dir: Path, postmaster: Postmaster, deadline: float
    ) -> None:
        """Ask the server which folder it serves, and create the database where it is missing."""
        arguments = [str(programs / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", str(socket_dir), "-p", str(PORT)]
        while True:
            # A server that hangs takes the connection and says nothing; libpq waits for at least two seconds.
            patience_seconds = max(2, min(10, int(deadline - time.monotonic())))
            done = subprocess.run(
                [*arguments, "-U", SUPERUSER, "-d", "postgres"],
                check=False,
                cwd=self._data_dir,
                env={**_PROGRAM_ENVIRONMENT, "PGCONNECT_TIMEOUT": str(patience_seconds)},
                input=_CREATE_DATABASE.encode(),
                capture_output=True,
                **account.popen_arguments(),
            )
            if done.returncode == 0:
                break
            said = done.stderr.decode(errors="replace").strip()
            if not postmaster.is_alive() or time.monotonic() >= deadline:
                raise PostgresNotRunning(self._with_log(f"PostgreSQL does not answer: {said}"))
            if _disk_is_full(said):
                raise PostgresNotRunning(_explained_text(said, self._data_dir))
            time.sleep(0.1)
        serves = done.stdout.decode(errors="replace").splitlines()[0]
        if os.path.realpath(serves) != str(self._database_folder):
            raise DataFolderUnusable(f"the server at {socket_dir} serves {serves}, not {self._database_folder}")

    def _socket_dir_of(self, postmaster: Postmaster) -> Path:
        lock = postmaster.lock_file()
        if lock is None or not lock.socket_dir:
            raise PostgresNotRunning(f"PostgreSQL (pid {postmaster.pid}) has gone again or listens on no Unix socket")
        return Path(lock.socket_dir)

    # Ending and explaining

    def _end(self, postmaster: Postmaster, mode: StopMode) -> None:
        postmaster.signal(_STOP_SIGNALS[mode])
        if postmaster.wait_exit(self._settings.stop_limit_seconds):
            return
        postmaster.signal(_STOP_SIGNALS["immediate"])
        if not postmaster.wait_exit(10):
            raise PostgresNotRunning(self._with_log(f"PostgreSQL (pid {postmaster.pid}) does not stop"))

    def _with_log(self, message: str) -> str:
        tail = self._log.since_mark()
        return _explained_text(f"{message}; it logged:\n{tail}" if tail else message, self._data_dir)

    def _explained(self, error: OSError) -> Permanent | Retryable:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return PostgresNotRunning(
                f"the disk of {self._data_dir} is full ({error}); free some space and start again"
            )
        return DataFolderUnusable(
            f"{self._data_dir} cannot be used: {error.strerror or error} ({error.filename or 'no file'}); "
            "make it writable for this user or choose another --data-dir"
        )


def _explained_text(message: str, data_dir: Path) -> str:
    if _disk_is_full(message):
        return f"the disk of {data_dir} is full; free some space and start again. {message}"
    return message


def _disk_is_full(message: str) -> bool:
    return any(os.strerror(number) in message for number in (errno.ENOSPC, errno.EDQUOT))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
