"""A lock file: held as long as a process has it open, so it is free again after any kind of death."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from yard_domain.errors import Retryable
from yard_store.embedded_account import Account


class FolderLockHeld(Retryable):
    """Another process holds the lock and did not let go within the limit."""


@contextmanager
def folder_lock(path: Path, account: Account, limit_seconds: float) -> Generator[int]:
    """Hold an exclusive lock on `path`; yields its descriptor, which a child process may inherit and so share.

    The file stays: removing it would let two holders lock two files of the same name. Raises `FolderLockHeld`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if account.switches:
            os.fchown(descriptor, account.uid, account.gid)
        deadline = time.monotonic() + limit_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise FolderLockHeld(f"{path} is locked by another process") from None
                time.sleep(0.02)
        yield descriptor
    finally:
        os.close(descriptor)
