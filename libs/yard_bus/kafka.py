"""The bus of production: Apache Kafka through aiokafka, brokers of version 3.0 and newer.

Units of work leave their events in the service's outbox, a relay publishes them; agents, which have no database,
publish in batches that are whole or not there. Readers see committed records only.
"""
# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.producer import sender

from yard_bus.kafka_assignor import SingleActiveAssignor
from yard_bus.kafka_closing import close_consumer, close_producer
from yard_bus.kafka_errors import kafka_errors
from yard_bus.kafka_metadata import TopicShape, topic_shapes
from yard_bus.kafka_options import KafkaOptions
from yard_bus.kafka_session import KafkaSession, Listener
from yard_bus.kafka_topics import apply_plan, plan_topics
from yard_bus.relay import Relay
from yard_domain.errors import Retryable
from yard_events.envelope import Envelope
from yard_events.partitioner import partition_for
from yard_events.registry import Topic
from yard_store.outbox import OutboxAppender
from yard_store.ports import Clock, EventAppender
from yard_store.tables import ServiceTables
from yard_store.unit_of_work import Ownership, Store

_log = structlog.get_logger("yard.kafka")

_NEXT_TRANSACTION_SECONDS = 0.002

MAX_REQUEST_BYTES = 4 * 2**20


class KafkaBus:
    """Implements `yard_bus.protocol.Bus`."""

    def __init__(self, options: KafkaOptions, *, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._producer: Any = None
        self._publishing = asyncio.Lock()
        self.relays: dict[str, Relay] = {}
        self.sessions: set[KafkaSession] = set()

    @property
    def shared(self) -> bool:
        return True

    @property
    def options(self) -> KafkaOptions:
        return self._options

    def appender(self, tables: ServiceTables) -> EventAppender:
        return OutboxAppender(tables)

    def relay(self, store: Store) -> Callable[[Ownership], Coroutine[Any, Any, None]]:
        relay = Relay(
            store,
            producer=lambda: self._start_producer(transactional_id=f"{self._options.prefix}yard.{store.schema}.relay"),
            prefix=self._options.prefix,
            limit_seconds=self._limit_seconds,
        )
        self.relays[store.schema] = relay
        return relay.run

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create what is missing; say what differs. Raises Retryable while the brokers are away."""
        plan = await plan_topics(self._options, topics)
        for difference in plan.differences:
            _log.warning("topic differs from its policy", topic=difference.topic, difference=difference.sentence)
        await apply_plan(self._options, plan.missing_only())

    async def publish(self, events: Sequence[Envelope]) -> None:
        """Each batch of one partition is whole or not there, and the next begins when it is known to be there: so a
        reader that drops known sequences misses none."""
        async with self._publishing:
            try:
                topics = ", ".join(sorted({event.topic for event in events}))
                with kafka_errors(f"publishing {len(events)} events to {topics}"):
                    await self._publish(events)
            except BaseException:
                # What it still holds must not come out later, between what is published next.
                await self._drop_producer()
                raise

    async def _publish(self, events: Sequence[Envelope]) -> None:
        if self._producer is None:
            self._producer = await self._start_producer()
        by_partition: dict[tuple[str, int], list[Envelope]] = defaultdict(list)
        for event in events:
            partitions = len(await self._producer.partitions_for(self._options.prefix + event.topic))
            by_partition[(event.topic, partition_for(event.key, partitions))].append(event)
        for (topic, partition), group in by_partition.items():
            rest = group
            while rest:
                batch, rest = self._fill(rest)
                async with self._limit():
                    await (await self._producer.send_batch(batch, self._options.prefix + topic, partition=partition))

    @property
    def _limit_seconds(self) -> float:
        """How long one exchange may take: aiokafka tries again for longer than its time-outs say, or without end."""
        return 2 * self._options.request_timeout_ms / 1000

    def _limit(self) -> asyncio.Timeout:
        return asyncio.timeout(self._limit_seconds)

    def _fill(self, events: Sequence[Envelope]) -> tuple[Any, Sequence[Envelope]]:
        batch = self._producer.create_batch()
        taken = 0
        for event in events:
            headers = [(name, text.encode()) for name, text in event.headers().items()]
            if batch.append(timestamp=None, key=event.key.encode(), value=event.value, headers=headers) is None:
                break
            taken += 1
        if taken == 0:
            raise ValueError(f"{events[0].type}: {len(events[0].value)} bytes do not fit into a batch")
        batch.close()
        return batch, events[taken:]

    @asynccontextmanager
    async def session(self, group: str | None, topics: Sequence[str]) -> AsyncGenerator[KafkaSession]:
        """Raises Retryable when the brokers are away or a topic does not exist."""
        assignor = SingleActiveAssignor(joined_at=self._now_ms())
        consumer: Any = AIOKafkaConsumer(**self._consumer_arguments(group, assignor))
        session: KafkaSession | None = None
        watching: asyncio.Task[None] | None = None
        try:
            with kafka_errors("connecting"):
                await consumer.start()
            shapes = await self._shapes(consumer, topics)
            session = KafkaSession(consumer, shapes, assignor, self._options.prefix)
            assignor.partitions = {self._options.prefix + name: shape.partitions for name, shape in shapes.items()}
            self.sessions.add(session)
            if group is None:
                consumer.assign([session.place(ref) for ref in session.everything()])
                await session.offer(session.everything(), wait=False)
            else:
                listener = Listener(session, assignor, self._now_ms)
                consumer.subscribe([self._options.prefix + name for name in topics], listener=listener)
            consumer._client.cluster.add_listener(session.metadata_changed)
            watching = asyncio.create_task(session.watch(group is not None), name="kafka session")
            yield session
        finally:
            if session is not None:
                self.sessions.discard(session)
                session.end("the session was closed")
            try:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
            finally:  # also when cancelled once more while waiting
                await close_consumer(consumer)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _consumer_arguments(self, group: str | None, assignor: SingleActiveAssignor) -> dict[str, Any]:
        return self._options.connection() | {
            "group_id": None if group is None else self._options.prefix + group,
            "client_id": f"yard-{group or 'reader'}",
            "enable_auto_commit": False,
            # Positions come from databases. A reset would skip or repeat silently.
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "partition_assignment_strategy": (assignor,),
            "session_timeout_ms": self._options.session_timeout_ms,
            "heartbeat_interval_ms": self._options.heartbeat_interval_ms,
            "max_partition_fetch_bytes": 2 * MAX_REQUEST_BYTES,
        }

    async def _shapes(self, consumer: Any, topics: Sequence[str]) -> dict[str, TopicShape]:
        shapes = await topic_shapes(consumer._client, topics, self._options.prefix)
        missing = sorted(set(topics) - set(shapes))
        if missing:
            raise Retryable(f"kafka: topics are missing: {', '.join(missing)}; `yard topics apply` makes them")
        return shapes

    async def _start_producer(self, transactional_id: str | None = None) -> Any:
        # A transaction that follows another at once is refused until the markers of the one before are written, a few
        # milliseconds; aiokafka asks again after 20, which would be most of the way of an event.
        sender.BACKOFF_OVERRIDE = _NEXT_TRANSACTION_SECONDS
        producer: Any = AIOKafkaProducer(
            **self._options.connection(),
            client_id=transactional_id or "yard-publisher",
            transactional_id=transactional_id,
            transaction_timeout_ms=30_000,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_request_size=MAX_REQUEST_BYTES,
            max_batch_size=MAX_REQUEST_BYTES // 2,
        )
        try:
            # It would look for a coordinator of transactions without end, and nobody would learn why nothing goes out.
            with kafka_errors("starting a producer"):
                async with self._limit():
                    await producer.start()
        except BaseException:
            await close_producer(producer)
            raise
        return producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)

    async def close(self) -> None:
        await self._drop_producer()
