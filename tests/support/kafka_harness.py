"""The Kafka bus under the contract suite: topics of each test's own, on the broker that the whole run shares."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from support.bus_harness import losing_commits
from support.contract import TABLES, contract_store, until
from support.severing_proxy import SeveringProxy
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_metadata import topic_shapes
from yard_bus.kafka_options import KafkaOptions
from yard_events.registry import Topic
from yard_runtime.service import RELAY, Runtime


@asynccontextmanager
async def kafka_runtimes(
    bootstrap: str, first: Runtime, second: Runtime, **options: Any
) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """The same two processes on Kafka, with a prefix of their own; their topics are deleted at the end."""
    prefix = f"t{secrets.token_hex(5)}."
    settings = {
        "partitions": 1,
        "request_timeout_ms": 3000,
        "heartbeat_interval_ms": 200,
        "session_timeout_ms": 3000,
    } | options
    chosen = KafkaOptions(bootstrap, prefix=prefix, **settings)
    buses = [KafkaBus(chosen, clock=first.clock), KafkaBus(chosen, clock=second.clock)]
    try:
        yield replace(first, bus=buses[0]), replace(second, bus=buses[1])
    finally:
        for bus in buses:
            await bus.close()
        async with admin(chosen) as client:
            await client.delete_topics([name for name in await client.list_topics() if name.startswith(prefix)])


@asynccontextmanager
async def admin(options: KafkaOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**options.connection())
    await client.start()
    try:
        yield client
    finally:
        await client.close()


class KafkaHarness:
    """See `support.bus_harness.BusHarness`."""

    def __init__(self, first: Runtime, second: Runtime, folder: Path) -> None:
        self.first = first
        self.second = second
        self._folder = folder

    @property
    def options(self) -> KafkaOptions:
        return self._buses[0].options

    @property
    def _buses(self) -> list[KafkaBus]:
        buses = [self.first.bus, self.second.bus]
        assert all(isinstance(bus, KafkaBus) for bus in buses)
        return buses  # type: ignore[return-value]

    async def ensure_topics(self, topics: list[Topic]) -> None:
        await self.first.bus.ensure_topics(topics)
        await self._until_known(topics)

    async def _until_known(self, topics: list[Topic]) -> None:
        async with admin(self.options) as client:

            async def known() -> bool:
                names = [topic.name for topic in topics]
                return set(await topic_shapes(client._client, names, self.options.prefix)) == set(names)

            await until(known, "the broker knows the topics")

    async def flush(self) -> None:
        """Relay what units of work left, as the next active instance would."""
        store = await contract_store(self.first)
        relay = asyncio.create_task(self._buses[0].relay(store)(await store.take(RELAY, "harness")))

        async def empty() -> bool:
            assert not relay.done(), relay
            async with store.reading() as connection:
                return await connection.scalar(sa.select(sa.func.count()).select_from(TABLES.outbox)) == 0

        try:
            await until(empty, "the outbox is empty")
        finally:
            relay.cancel()
            await asyncio.wait([relay])

    async def end_sessions(self) -> None:
        for bus in self._buses:
            for session in list(bus.sessions):
                session.end("ended by the test")

    async def end_active_member(self) -> None:
        async def found() -> bool:
            return len([s for bus in self._buses for s in bus.sessions if s.active]) == 1

        await until(found, "there is exactly one active member")
        [active] = [session for bus in self._buses for session in bus.sessions if session.active]
        active.end("ended by the test")

    async def drop_before(self, topic: str, offset: int) -> None:
        async with admin(self.options) as client:
            place = TopicPartition(self.options.prefix + topic, 0)
            await client.delete_records({place: RecordsToDelete(before_offset=offset)})

    async def delete_and_make_again(self, topic: Topic) -> None:
        async with admin(self.options) as client:
            before = await topic_shapes(client._client, [topic.name], self.options.prefix)
            await client.delete_topics([self.options.prefix + topic.name])

            async def gone() -> bool:
                return not await topic_shapes(client._client, [topic.name], self.options.prefix)

            await until(gone, "the topic is gone")
        await self.ensure_topics([topic])
        async with admin(self.options) as client:
            after = await topic_shapes(client._client, [topic.name], self.options.prefix)
        assert after[topic.name].incarnation != before[topic.name].incarnation

    def losing_commits(self) -> AbstractAsyncContextManager[tuple[Runtime, SeveringProxy]]:
        return losing_commits(self.first, self._folder)
