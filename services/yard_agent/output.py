"""Reading what tasks print: exact bytes from an offset, once or for as long as the task writes."""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator

CHUNK_BYTES = 64 * 1024
SHORTEST_INTERVAL_SECONDS = 0.05
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


def read(path: str | os.PathLike[str], offset: int, limit: int) -> bytes:
    """Up to `limit` bytes from `offset`; empty at or beyond the end, and when there is no such file.

    A task may put anything in the place of its output. What is no regular file counts as absent: a pipe would block
    the reader, a link or a device would show what is not the task's output, or never end.
    """
    if offset < 0 or limit < 0:
        raise ValueError("offset and limit must not be negative")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in _ABSENT:
            return b""
        raise
    try:
        return os.pread(fd, limit, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


async def follow(
    path: str | os.PathLike[str],
    offset: int,
    ended: asyncio.Event,
    *,
    interval_seconds: float = 0.1,
    chunk_bytes: int = CHUNK_BYTES,
) -> AsyncIterator[bytes]:
    """The bytes from `offset` on, as they come, until `ended` is set and all is read.

    `ended` means that nothing writes any more: the task emptied, not only its first process exited. Files tell nobody
    that they grew, so the size is looked at every `interval_seconds` (at least 0.05).
    """
    interval = max(interval_seconds, SHORTEST_INTERVAL_SECONDS)
    while True:
        # Asked before the read: what is written between the two is read in the next round.
        last_round = ended.is_set()
        data = read(path, offset, chunk_bytes)
        if data:
            offset += len(data)
            yield data
            # A reader that left is only noticed by a loop that gets its turn.
            await asyncio.sleep(0)
        elif last_round:
            return
        else:
            try:
                async with asyncio.timeout(interval):
                    await ended.wait()
            except TimeoutError:
                continue
