"""From a record to an event that is wanted, or to the reason why it is passed over. No I/O."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from yard_client.events.position import Position
from yard_client.events.progress import PartitionProgress
from yard_client.events.received import Counts, MalformedRecord, ReceivedEvent
from yard_client.events.selection import Selection
from yard_domain.errors import Permanent
from yard_events.base import EventModel, unwrap
from yard_events.envelope import Envelope, from_headers, publish_sequence

_log = logging.getLogger("yard.events")


@dataclass(frozen=True, slots=True)
class Found:
    """A record that passed the codec and the selection."""

    envelope: Envelope
    data: EventModel | None
    partition: int
    offset: int

    def event(
        self, *, acknowledge: Callable[[], Awaitable[None]], position_after: Callable[[], Position]
    ) -> ReceivedEvent:
        envelope = self.envelope
        return ReceivedEvent(
            type=envelope.type,
            id=envelope.id,
            source=envelope.source,
            time=envelope.time,
            subject=envelope.subject,
            key=envelope.key,
            data=self.data,
            value=envelope.value,
            project_id=envelope.project_id,
            correlation_id=envelope.correlation_id,
            causation_id=envelope.causation_id,
            publish_seq=envelope.publish_seq,
            headers=envelope.extra,
            topic=envelope.topic,
            partition=self.partition,
            offset=self.offset,
            _acknowledge=acknowledge,
            _position_after=position_after,
        )


class Reader:
    """Reads records of one consumer and counts what it passes over."""

    def __init__(
        self,
        selection: Selection,
        counts: Counts,
        raw: bool,
        on_malformed: Callable[[MalformedRecord], None] | None,
        prefix: str,
    ) -> None:
        self._selection = selection
        self._counts = counts
        self._raw = raw
        self._on_malformed = on_malformed or _log_malformed
        self._prefix = prefix

    def read(self, record: Any, progress: PartitionProgress) -> Found | None:
        """What is handed out; otherwise it is passed over, and the progress knows."""
        headers = {name: value.decode(errors="replace") for name, value in record.headers}
        if record.value is None:
            self._counts.tombstones += 1
            return progress.pass_over(record.offset)
        try:
            sequence = publish_sequence(headers)
        except ValueError as error:
            return self._malformed(record, headers, progress, error)
        event_id, source = headers.get("ce_id", ""), headers.get("ce_source", "")
        if not event_id or not source:
            return self._malformed(record, headers, progress, ValueError("not a CloudEvent: no ce_id or no ce_source"))
        if not progress.take(record.offset, source, sequence, event_id):
            self._counts.doubles += 1
            return None
        return self._select(record, headers, progress)

    def _select(self, record: Any, headers: dict[str, str], progress: PartitionProgress) -> Found | None:
        wanted = self._selection
        # What the headers can tell spares decoding the value.
        if not wanted.wants_type(headers.get("ce_type", "")) or not wanted.wants_project(headers.get("ce_projectid")):
            self._counts.filtered += 1
            return progress.pass_over(record.offset)
        key = (record.key or b"").decode(errors="replace")
        try:
            envelope = from_headers(record.topic.removeprefix(self._prefix), key, headers, record.value)
            data = unwrap(envelope)
        except (ValueError, Permanent) as error:
            return self._malformed(record, headers, progress, error)
        if data is None and not self._raw:
            self._counts.unknown += 1
            return progress.pass_over(record.offset)
        if not wanted.wants_queue(data):
            self._counts.filtered += 1
            return progress.pass_over(record.offset)
        return Found(envelope, data, record.partition, record.offset)

    def _malformed(self, record: Any, headers: dict[str, str], progress: PartitionProgress, error: Exception) -> None:
        self._counts.malformed += 1
        progress.pass_over(record.offset)
        topic = record.topic.removeprefix(self._prefix)
        message = " ".join(str(error).split())
        self._on_malformed(
            MalformedRecord(topic, record.partition, record.offset, record.key, headers, record.value, message)
        )


def _log_malformed(record: MalformedRecord) -> None:
    _log.warning("%s/%s@%s is no event: %s", record.topic, record.partition, record.offset, record.error[:500])
