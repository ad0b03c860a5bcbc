"""Waiting for the end of a process without polling: a pidfd becomes readable when it ends."""

import asyncio
import os
from collections.abc import Callable


async def wait_for_exit(pid: int, is_alive: Callable[[], bool], poll_seconds: float = 0.1) -> None:
    """Return when the process has ended; as a zombie it has. It need not be a child of this process.

    `is_alive` tells whether `pid` still means the process that the caller has in mind. It is asked once the pidfd is
    open, because the pid may have passed to another process before that, and every `poll_seconds` on a system without
    pidfds.
    """
    descriptor = _open_pidfd(pid)
    if descriptor is None:
        while is_alive():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(poll_seconds)
        return
    loop = asyncio.get_running_loop()
    try:
        if not is_alive():
            return
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)


def _open_pidfd(pid: int) -> int | None:
    """None where there is no such process any more, where the system has no pidfds, or a sandbox forbids them."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
