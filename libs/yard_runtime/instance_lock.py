"""One instance per folder: a second one is told who the first one is."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from yard_domain.errors import Permanent


class InstanceRunning(Permanent):
    """Another instance holds the lock. `pid` is its process, None in the moment before it has written it."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path.parent} is in use by {who}: stop it first, or choose another --data-dir")
        self.pid = pid


class InstanceLock:
    """A lock on the file `path`, free again when its holder ends in whatever way. Child processes do not inherit it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises `InstanceRunning` at once where another holds it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise Permanent(f"{self._path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            written = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            raise InstanceRunning(self._path, int(written) if written.isdigit() else None) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """The file stays: removing it would let two instances lock two files of the same name."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
