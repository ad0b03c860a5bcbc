"""What a handler gets, and the span under which it works."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanKind

from yard_bus.protocol import Record
from yard_domain.errors import Permanent
from yard_events.base import EventModel, unwrap
from yard_events.envelope import Envelope, from_headers
from yard_obs.tracing import link_to, recording, span
from yard_store.unit_of_work import UnitOfWork

_LINKS = 128

ATTEMPTS_BEFORE_PARKING = 5


@dataclass(frozen=True, slots=True)
class Received:
    """A record that passed the codec. `data` is None for a type that this version does not know."""

    envelope: Envelope
    data: EventModel | None
    record: Record


Handler = Callable[[Sequence[Received], UnitOfWork], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`attempts_before_parking`: tries of an error that nobody classified before it is taken for permanent."""

    batch_limit: int = 500
    backoff_first_seconds: float = 0.05
    backoff_limit_seconds: float = 5.0
    attempts_before_parking: int = ATTEMPTS_BEFORE_PARKING


def receive(record: Record) -> Received:
    """Decode one record. Raises Permanent when it is not a CloudEvent or its data is not what its type promises."""
    try:
        envelope = from_headers(record.ref.topic, record.key, record.headers, record.value)
    except ValueError as error:
        raise Permanent(f"{record.ref.topic}/{record.ref.partition}@{record.offset}: {error}") from error
    return Received(envelope, unwrap(envelope), record)


def processing(group: str, batch: Sequence[Received]) -> AbstractContextManager[Any]:
    """The span `process T` of a batch: child of the sender's when there is one record, linked to all senders' else."""
    if not recording():
        return nullcontext()
    first = batch[0]
    ref = first.record.ref
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": ref.topic,
        "messaging.destination.partition.id": str(ref.partition),
        "messaging.consumer.group.name": group,
        "messaging.kafka.offset": first.record.offset,
    }
    if len(batch) == 1:
        attributes["messaging.message.id"] = first.envelope.id
        attributes["messaging.message.conversation_id"] = first.envelope.correlation_id or first.envelope.id
        return span(f"process {ref.topic}", kind=SpanKind.CONSUMER, parent=first.envelope.extra, attributes=attributes)
    attributes["messaging.batch.message_count"] = len(batch)
    links = tuple(link for one in batch[:_LINKS] if (link := link_to(one.envelope.extra)) is not None)
    return span(f"process {ref.topic}", kind=SpanKind.CONSUMER, links=links, attributes=attributes, root=True)
