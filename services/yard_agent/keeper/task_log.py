"""The keeper's memory across its own death: JSON lines, on disk before the keeper acts on them.

Records: intent(id, boot) → pid(id, pid, started) → exit(id, ...) → emptied(id) → forget(id).
"""

import json
import os
import sys


class TaskLog:
    """An append-only file of records; `size_bytes` is what is known to be on disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.kept_bytes = 0
        self._fd = -1

    def read(self) -> list[dict]:
        """All records of the file. A torn last line is what a crash in mid-write leaves: it never took effect."""
        try:
            with open(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        records: list[dict] = []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                record = json.loads(line)
            except ValueError:
                print(f"keeper: {self.path}: line {number} is torn and is left out", file=sys.stderr, flush=True)
                continue
            if isinstance(record, dict) and isinstance(record.get("id"), str):
                records.append(record)
        return records

    def rewrite(self, records: list[dict]) -> None:
        """Replace the file as a whole by these records; a crash leaves the old file or the new one."""
        fresh = self.path + ".new"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = _write(fd, records)
            os.fsync(fd)
            os.rename(fresh, self.path)
            _sync_folder(os.path.dirname(self.path))
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size_bytes, self.kept_bytes = fd, size, size

    def append(self, records: list[dict]) -> None:
        """On disk when it returns. After an OSError the file is as before."""
        if not records:
            return
        try:
            written = _write(self._fd, records)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += written

    @property
    def overgrown(self) -> bool:
        """Mostly records that later ones made void."""
        return self.size_bytes > max(1 << 20, 4 * self.kept_bytes)


def _write(fd: int, records: list[dict]) -> int:
    data = b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _sync_folder(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
