"""Topics of a test's own on the Kafka of the whole run, and a writer of events who can do what relays do, and worse."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from yard_events.envelope import Envelope
from yard_events.golden import golden_events
from yard_events.types import JobFact

GOLDEN = {envelope.type: envelope for envelope in golden_events()}


def job_event(number: int, *, event_type: str = "yard.jobs.running.v1", **changes: Any) -> Envelope:
    """An event of the job `job-<number>`, numbered by the relay of admission as `number`."""
    golden = GOLDEN[event_type]
    data = json.loads(golden.value) | {"job_id": f"job-{number}"}
    value = json.dumps(data).encode()
    made = replace(golden, id=f"evt-{number}", key=f"job-{number}", value=value, publish_seq=number)
    return replace(made, **changes)


def changed(envelope: Envelope, **fields: Any) -> Envelope:
    """The same event with other fields in its value."""
    return replace(envelope, value=json.dumps(json.loads(envelope.value) | fields).encode())


def number_of(event: Any) -> int:
    """Of the job of a received event."""
    assert isinstance(event.data, JobFact)
    return int(event.data.job_id.removeprefix("job-"))


@dataclass
class Log:
    """Some topics under a prefix. `write` appends in order; everything is committed when it returns."""

    bootstrap: str
    prefix: str
    producer: Any
    partitions: int
    written: int = field(default=0)

    async def write(self, events: Sequence[Envelope], *, partition: int = 0) -> None:
        for event in events:
            headers = [(name, text.encode()) for name, text in event.headers().items()]
            await self.raw(event.topic, event.value, headers, key=event.key.encode(), partition=partition)

    async def raw(
        self,
        topic: str,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        *,
        key: bytes = b"",
        partition: int = 0,
    ) -> None:
        await self.producer.send_and_wait(
            self.prefix + topic, value, key=key, headers=list(headers), partition=partition
        )
        self.written += 1


@asynccontextmanager
async def log_on(bootstrap: str, *, topics: Sequence[str], partitions: int = 1) -> AsyncIterator[Log]:
    prefix = f"c{secrets.token_hex(5)}."
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=4 * 2**20, acks="all")
    try:
        configuration = {"max.message.bytes": str(2 * 2**20)}
        await admin.create_topics(
            [NewTopic(prefix + name, partitions, 1, topic_configs=configuration) for name in topics]
        )
        await producer.start()
        yield Log(bootstrap, prefix, producer, partitions)
    finally:
        await producer.stop()
        await admin.delete_topics([prefix + name for name in topics])
        await admin.close()


def headers_of(envelope: Envelope, **more: str) -> list[tuple[str, bytes]]:
    found: Mapping[str, str] = envelope.headers() | more
    return [(name, text.encode()) for name, text in found.items() if text]
