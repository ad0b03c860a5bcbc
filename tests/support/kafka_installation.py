"""An installation on the Kafka that the run shares: topics of its own, removed at the end."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.admin import AIOKafkaAdminClient

from support.installation import Installation


@contextmanager
def own_topics(made: Installation, bootstrap: str) -> Iterator[str]:
    """Give the installation, before it is up, a prefix for its topics; delete them afterwards."""
    prefix = f"e{secrets.token_hex(4)}."
    made.env |= {"YARD_KAFKA_PREFIX": prefix}
    try:
        yield prefix
    finally:
        if made.running:
            made.interrupt()
        asyncio.run(_delete(bootstrap, prefix))


async def _delete(bootstrap: str, prefix: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.delete_topics([name for name in await client.list_topics() if name.startswith(prefix)])
    finally:
        await client.close()
