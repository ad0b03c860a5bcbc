"""Letting go of Kafka's clients in bounded time: their own way of ending waits for brokers, which may be away."""

# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

import asyncio
from contextlib import suppress
from typing import Any

from aiokafka.errors import KafkaError

_ORDERLY_SECONDS = 2.0


async def close_producer(producer: Any) -> None:
    """Flush what is under way if the brokers take it at once; else drop it: whoever sent it knows nothing of it yet."""
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_ORDERLY_SECONDS):
            await producer.stop()
            return
    with suppress(KafkaError, OSError):
        await producer._sender.close()
        await producer.client.close()


async def close_consumer(consumer: Any) -> None:
    """Leave the group if the brokers listen; else they find out when the member's session is over."""
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_ORDERLY_SECONDS):
            await consumer.stop()
            return
    with suppress(KafkaError, OSError):
        await consumer._client.close()
