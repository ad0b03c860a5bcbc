"""Running work that ends in exception groups inside of a loop that goes on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run in a task of its own.

    A cancellation that arrives while a task group inside is already failing is not raised again by the group (Python
    3.11 and 3.12): a loop that catches the group's errors and goes on would never end. Here it ends the caller, once
    the work is over.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what counts
        raise
    return task.result()
