"""CloudEvents 1.0 in binary mode: a JSON value, and its context attributes as headers.

Source: CloudEvents 1.0 specification and its Kafka protocol binding (attribute `x` travels as header `ce_x`).
"""

from dataclasses import dataclass, field
from datetime import datetime

CONTENT_TYPE = "application/json"
SPEC_VERSION = "1.0"
MAX_VALUE_BYTES = 2**20
"""The largest value that may travel, on every bus; topics take somewhat more, for headers."""
MAX_KEY_BYTES = 8192
"""The longest key and subject together."""
MAX_PUBLISH_SEQ = 2**63 - 1


def data_schema(event_type: str) -> str:
    """The `$id` of a type's JSON Schema, a URI as CloudEvents wants it; after `urn:gpuyard:` stands the file's path."""
    return f"urn:gpuyard:schemas/events/{event_type}.json"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event as it travels: routing, context attributes, and the value's bytes.

    `publish_seq` is set by producers that cannot append inside a database transaction (agents): it rises by one per
    event of `source`, and consumers drop what is not above the highest they saw.
    """

    topic: str
    key: str
    id: str
    type: str
    source: str
    subject: str
    time: datetime
    value: bytes
    correlation_id: str | None = None
    causation_id: str | None = None
    project_id: str | None = None
    publish_seq: int | None = None
    extra: dict[str, str] = field(default_factory=dict[str, str])

    def headers(self) -> dict[str, str]:
        """The context attributes as headers, `ce_` prefixed, absent ones left out."""
        result = self.extra | {
            "ce_specversion": SPEC_VERSION,
            "ce_id": self.id,
            "ce_source": self.source,
            "ce_type": self.type,
            "ce_subject": self.subject,
            "ce_time": self.time.isoformat(),
            "ce_dataschema": data_schema(self.type),
            "content-type": CONTENT_TYPE,
        }
        if self.correlation_id is not None:
            result["ce_correlationid"] = self.correlation_id
        if self.causation_id is not None:
            result["ce_causationid"] = self.causation_id
        if self.project_id is not None:
            result["ce_projectid"] = self.project_id
        if self.publish_seq is not None:
            result["yard_publishseq"] = str(self.publish_seq)
        return result


_KNOWN = frozenset(
    {
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_subject",
        "ce_time",
        "ce_dataschema",
        "ce_correlationid",
        "ce_causationid",
        "ce_projectid",
        "yard_publishseq",
        "content-type",
    }
)


def publish_sequence(headers: dict[str, str]) -> int | None:
    """The producer's sequence number; None without one. Raises ValueError when it is not a 63-bit number."""
    text = headers.get("yard_publishseq")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_PUBLISH_SEQ):
        raise ValueError(f"header yard_publishseq must be a number from 0 to {MAX_PUBLISH_SEQ}, not {text[:40]!r}")
    return int(text)


def from_headers(topic: str, key: str, headers: dict[str, str], value: bytes) -> Envelope:
    """The envelope of a received record. Raises ValueError when a required attribute is missing or malformed."""
    required = ("ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time")
    missing = [name for name in required if not headers.get(name)]
    if missing:
        raise ValueError(f"not a CloudEvent: header {', '.join(missing)} is missing")
    if headers["ce_specversion"] != SPEC_VERSION:
        raise ValueError(f"header ce_specversion must be {SPEC_VERSION}, not {headers['ce_specversion'][:40]!r}")
    time = datetime.fromisoformat(headers["ce_time"])
    if time.tzinfo is None:
        raise ValueError(f"header ce_time must have a zone: {headers['ce_time']!r}")
    return Envelope(
        topic=topic,
        key=key,
        id=headers["ce_id"],
        type=headers["ce_type"],
        source=headers["ce_source"],
        subject=headers.get("ce_subject", ""),
        time=time,
        value=value,
        correlation_id=headers.get("ce_correlationid"),
        causation_id=headers.get("ce_causationid"),
        project_id=headers.get("ce_projectid"),
        publish_seq=publish_sequence(headers),
        extra={name: text for name, text in headers.items() if name not in _KNOWN},
    )
