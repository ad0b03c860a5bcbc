"""Letting go of Kafka's clients in bounded time: their own way of ending waits for brokers, which may be away."""

# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from aiokafka.errors import KafkaError

_ORDERLY_SECONDS = 2.0
_STUBBORN_SECONDS = 0.5
_ROUNDS = 4


async def close_producer(producer: Any) -> None:
    """Flush what is under way if the brokers take it at once; else drop it: whoever sent it knows nothing of it yet."""
    await _undisturbed(_close_producer(producer))


async def close_consumer(consumer: Any) -> None:
    """Leave the group if the brokers listen; else they find out when the member's session is over."""
    await _undisturbed(_close_consumer(consumer))


async def _close_producer(producer: Any) -> None:
    if not await _orderly(producer.stop()):
        await _abandon(producer.client, producer._sender, producer._message_accumulator)


async def _close_consumer(consumer: Any) -> None:
    if not await _orderly(consumer.stop()):
        await _abandon(consumer._client, consumer._coordinator, consumer._fetcher)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """`work` to its end, which is bounded. Whoever closes is being cancelled as a rule, often more than once, and what
    is left half closed keeps its tasks and connections for ever."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _orderly(stop: Coroutine[Any, Any, None]) -> bool:
    """Whether it came to its end in time. A task of its own: aiokafka's way of ending may raise the CancelledError of a
    task that it ended, which says nothing about us."""
    task = asyncio.ensure_future(stop)
    await asyncio.wait([task], timeout=_ORDERLY_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_STUBBORN_SECONDS)
        return False
    if task.cancelled():
        return False
    with suppress(KafkaError, OSError, TimeoutError):
        task.result()
        return True
    return False


async def _abandon(client: Any, *parts: Any) -> None:
    """End the client's tasks by force, then its connections. A task that is told to end may wait for another first, so
    this takes some rounds."""
    for _ in range(_ROUNDS):
        tasks = _tasks_of(client, *parts)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_STUBBORN_SECONDS)
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_STUBBORN_SECONDS):
            await client.close()


def _tasks_of(*owners: Any) -> set[asyncio.Task[Any]]:
    """Those that run a method of one of the owners. aiokafka keeps no list of its tasks, and forgets one that looks for
    a coordinator, which goes on for as long as there is none."""
    found: set[asyncio.Task[Any]] = set()
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and any(frame.f_locals.get("self") is owner for owner in owners if owner is not None):
            found.add(task)
    return found
