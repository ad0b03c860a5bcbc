"""Ctrl-C while following a job: the first cancels the job, the second leaves it to itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from yard_client.cli.follow import first_error

Result = TypeVar("Result")


class Detached(Exception):
    """A second Ctrl-C: stop following, leave the job."""


async def interruptible(
    work: Coroutine[Any, Any, Result], on_first: Callable[[], Awaitable[None]]
) -> tuple[Result, bool]:
    """The result of `work`, and whether Ctrl-C was pressed. Raises Detached on the second one."""
    presses: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, presses.put_nowait, None)
    pressed = False

    async def react(group: asyncio.TaskGroup) -> None:
        nonlocal pressed
        await presses.get()
        pressed = True
        # Beside the second press: that one must be heard while the server does not answer.
        group.create_task(_first())
        await presses.get()
        raise Detached

    async def _first() -> None:
        await on_first()

    try:
        async with asyncio.TaskGroup() as group:
            reacting = group.create_task(react(group))
            result = await group.create_task(work)
            reacting.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return result, pressed
