"""The folder of the embedded PostgreSQL: what is in it, whose it is, and when it is refused."""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from yard_domain.errors import Permanent
from yard_store.embedded_account import (
    Account,
    account_for,
    give_to_account,
    give_tree_to_account,
    let_account_reach,
    let_account_run_programs,
)

DATABASE = "gpuyard"
SUPERUSER = "postgres"
PORT = 5432

_OWN_ENTRIES = frozenset({"pgdata", "log", "setup.lock", "server.lock", "initdb.unfinished", "lost+found"})
# sun_path holds 108 bytes, the last of which is NUL.
_SOCKET_PATH_LIMIT_BYTES = 107
# A comma separates hosts in a DSN and folders in the server's setting; quotes and controls are not worth quoting.
_PLAIN_PATH = re.compile(r"[\w./+@%=:~ -]+")


class DataFolderVersion(Permanent):
    """The data folder was written by another major version of PostgreSQL."""


class DataFolderUnusable(Permanent):
    """The data folder cannot be used: not writable, somebody else's, or full of something else."""


class DataFolder:
    """`path` is absolute and free of symbolic links. Methods raise `OSError` where the file system says no."""

    def __init__(self, path: Path, major_version: int) -> None:
        self.path = path
        self._major_version = major_version
        self.database = path / "pgdata"
        self.unfinished = path / "initdb.unfinished"
        self.log = path / "log"
        self.setup_lock = path / "setup.lock"
        self.server_lock = path / "server.lock"
        self.cluster_name = f"gpuyard-{hashlib.sha256(os.fsencode(path)).hexdigest()[:10]}"

    def prepare(self, programs: Path) -> Account:
        """Make the folder where it is missing; return the account that it belongs to and that runs the server.

        Raises `DataFolderVersion`, `DataFolderUnusable`.
        """
        self._refuse_foreign_content()
        self.refuse_other_version()
        self.path.mkdir(parents=True, exist_ok=True)
        account = account_for(self.database)
        owner = self.path.stat().st_uid
        if not account.switches and owner != account.uid:
            raise DataFolderUnusable(
                f"{self.path} belongs to another user (uid {owner}); start gpuyard as that user or as root, "
                "or choose another --data-dir"
            )
        if account.switches:
            let_account_reach(account, self.path)
            let_account_run_programs(account, programs)
            give_to_account(account, self.path)
        # Whoever reaches the socket is the database's superuser.
        self.path.chmod(0o700)
        self.log.mkdir(mode=0o700, exist_ok=True)
        give_tree_to_account(account, self.log)
        return account

    def refuse_other_version(self) -> None:
        """Raises `DataFolderVersion`; `DataFolderUnusable` for a database without a version."""
        if not self.database.exists():
            return
        if not (self.database / "PG_VERSION").exists():
            # initdb works in a folder of another name, so this is not one that it left behind.
            raise DataFolderUnusable(
                f"{self.database} has no PG_VERSION: it is damaged or not a database; restore it from a backup "
                "or choose another --data-dir"
            )
        self._refuse_version_in(self.database)

    def repair_ownership(self, account: Account) -> None:
        """A database that root restored from a backup belongs to root and may be readable by all; the server refuses
        both."""
        status = self.database.stat()
        if account.switches and status.st_uid != account.uid:
            give_tree_to_account(account, self.database)
        if status.st_mode & 0o077:
            self.database.chmod(0o700)

    def socket_dir(self, account: Account) -> Path:
        """This folder, or where its path is too long for a socket, a private one in the system's temporary folder."""
        if _fits_a_socket(self.path):
            return self.path
        folder = self._runtime_dir()
        if not _fits_a_socket(folder):
            raise DataFolderUnusable(f"{folder} is too long for a Unix socket; set TMPDIR to a short path")
        # The name can be guessed and the parent is everybody's: what is there must be ours alone.
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            give_to_account(account, folder)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.uid or status.st_mode & 0o077:
            raise DataFolderUnusable(f"{folder} is in the way of the database's socket and belongs to somebody else")
        return folder

    def remove_runtime_files(self) -> None:
        """Remove what lies outside the folder: the socket's, if it had to be elsewhere."""
        folder = self._runtime_dir()
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)

    def _runtime_dir(self) -> Path:
        return Path(tempfile.gettempdir(), self.cluster_name)

    def _refuse_foreign_content(self) -> None:
        if not self.path.exists() or self.database.exists():
            return
        if (self.path / "PG_VERSION").exists():
            self._refuse_version_in(self.path)
            raise DataFolderUnusable(
                f"{self.path} is a database folder that gpuyard did not make; choose another --data-dir"
            )
        names = (entry.name for entry in self.path.iterdir())
        foreign = sorted(name for name in names if name not in _OWN_ENTRIES and not name.startswith(".s.PGSQL."))
        if foreign:
            raise DataFolderUnusable(
                f"{self.path} is not empty and holds no gpuyard database (there is {foreign[0]!r}); "
                "choose an empty or a new folder with --data-dir"
            )

    def _refuse_version_in(self, folder: Path) -> None:
        found = (folder / "PG_VERSION").read_text(errors="replace").strip()
        wanted = self._major_version
        if found == str(wanted):
            return
        raise DataFolderVersion(
            f"{folder} was written by PostgreSQL {found}; this gpuyard runs PostgreSQL {wanted}, which cannot read it. "
            f"Nothing was changed. To keep the data: start it with the gpuyard that wrote it, run "
            f"`pg_dump -Fc -h {self.path} -U {SUPERUSER} {DATABASE} > gpuyard.dump`, start this gpuyard with a new "
            f"--data-dir, stop its services and run `pg_restore -c --if-exists -d {DATABASE} gpuyard.dump` there. "
            f"To begin afresh: choose another --data-dir."
        )


def _fits_a_socket(folder: Path) -> bool:
    path = os.fsencode(folder / f".s.PGSQL.{PORT}")
    return len(path) <= _SOCKET_PATH_LIMIT_BYTES and _PLAIN_PATH.fullmatch(str(folder)) is not None
