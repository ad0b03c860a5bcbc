"""Doing what one's partitions ask for, for as long as one has them."""

import asyncio
from collections.abc import Awaitable, Callable

from yard_bus.protocol import PartitionRef, Session

Duty = Callable[[frozenset[PartitionRef]], Awaitable[None]]


async def follow(session: Session, duty: Duty) -> None:
    """Run `duty(partitions)` while the session has partitions: cancelled and over before the next assignment counts.

    Ends, as an exception group, with what the duty raises, or with Retryable when the session does.
    """
    async with asyncio.TaskGroup() as group:
        running: asyncio.Task[None] | None = None

        async def perform(refs: frozenset[PartitionRef]) -> None:
            await duty(refs)

        async for refs in session.assignments():
            if running is not None:
                running.cancel()
                await asyncio.wait([running])
            running = group.create_task(perform(refs), name="duty") if refs else None
