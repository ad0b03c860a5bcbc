"""A job's output on stdout: byte for byte for one task, line by line with the task's rank for a gang."""

from __future__ import annotations

from collections.abc import Callable

# A line that grows beyond this is cut, so that a task that never ends its line cannot fill the memory.
LONGEST_LINE_BYTES = 64 * 1024


class TaskOutput:
    """What one task of one attempt wrote. `bytes_read` counts the task's own bytes, so that reading can go on there."""

    def __init__(self, write: Callable[[bytes], None], prefix: bytes) -> None:
        self._write = write
        self._prefix = prefix
        self._line = b""
        self.bytes_read = 0

    def feed(self, chunk: bytes) -> None:
        self.bytes_read += len(chunk)
        if not self._prefix:
            self._write(chunk)
            return
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > LONGEST_LINE_BYTES:
            lines, self._line = [*lines, self._line], b""
        if lines:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        """Writes a last line that the task did not end; it ends here, so that the next task's begins on its own."""
        if self._line:
            self._write(self._prefix + self._line + b"\n")
            self._line = b""


class JobOutput:
    """Makes the outputs of a job's tasks. `label` tells several jobs apart."""

    def __init__(self, write: Callable[[bytes], None], *, prefixed: bool, label: str = "") -> None:
        self._out = write
        self._prefixed = prefixed
        self._label = label
        self.bytes_written = 0

    def task(self, rank: int) -> TaskOutput:
        if not self._prefixed:
            return TaskOutput(self._write, b"")
        label = f"{self._label} {rank}" if self._label else str(rank)
        return TaskOutput(self._write, f"[{label}] ".encode())

    def _write(self, data: bytes) -> None:
        self.bytes_written += len(data)
        self._out(data)
