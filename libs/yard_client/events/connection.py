"""Connecting to Kafka as a reader, with patience, and what its errors mean."""
# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    AuthenticationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

from yard_client.events.errors import KafkaRefused, KafkaUnreachable, TopicMissing
from yard_client.retry import Backoff, RetryPolicy

REFUSALS = (
    AuthenticationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
_LOOKS = 3
"""A broker that just started knows few topics; this often is it asked before they count as missing."""


def describe(error: BaseException) -> str:
    """One line."""
    return " ".join(str(error).split()) or type(error).__name__


def refused(bootstrap: str, error: BaseException) -> KafkaRefused:
    return KafkaRefused(f"Kafka at {bootstrap} refuses: {type(error).__name__}: {describe(error)}")


async def connect(arguments: dict[str, Any], topics: Collection[str], bootstrap: str, retry: RetryPolicy) -> Any:
    """A started consumer, not yet subscribed. Raises KafkaUnreachable, KafkaRefused or TopicMissing."""
    backoff = Backoff(retry, asyncio.get_running_loop().time())
    looks = 0
    while True:
        consumer: Any = AIOKafkaConsumer(**arguments)
        try:
            await consumer.start()
            existing: set[str] = await consumer.topics()
            missing = set(topics) - existing
            if not missing:
                return consumer
            looks += 1
            if looks == _LOOKS:
                raise TopicMissing(bootstrap, missing, existing)
            failure: BaseException | None = None
        except REFUSALS as error:
            await consumer.stop()
            raise refused(bootstrap, error) from error
        except (KafkaError, OSError, TimeoutError) as error:
            failure = error
        except BaseException:
            await consumer.stop()
            raise
        await consumer.stop()
        pause = backoff.pause(asyncio.get_running_loop().time())
        if pause is None:
            cause = describe(failure) if failure else "topics are missing"
            if arguments["security_protocol"] != "PLAINTEXT":
                # aiokafka tells it to its log only.
                cause += " (it may refuse the credentials or the certificate)"
            raise KafkaUnreachable(bootstrap, cause) from failure
        await asyncio.sleep(pause)
