"""CloudEvents 1.0 in binary mode: a JSON value, and its context attributes as headers.

Source: CloudEvents 1.0 specification and its Kafka protocol binding (attribute `x` travels as header `ce_x`).
"""

from dataclasses import dataclass, field
from datetime import datetime

CONTENT_TYPE = "application/json"


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
        result = {
            "ce_specversion": "1.0",
            "ce_id": self.id,
            "ce_source": self.source,
            "ce_type": self.type,
            "ce_subject": self.subject,
            "ce_time": self.time.isoformat(),
            "ce_dataschema": f"schemas/{self.type}.json",
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
        result.update(self.extra)
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


def from_headers(topic: str, key: str, headers: dict[str, str], value: bytes) -> Envelope:
    """The envelope of a received record. Raises ValueError when a required attribute is missing or malformed."""
    missing = [name for name in ("ce_id", "ce_type", "ce_source", "ce_time") if name not in headers]
    if missing:
        raise ValueError(f"not a CloudEvent: header {', '.join(missing)} is missing")
    publish_seq = headers.get("yard_publishseq")
    return Envelope(
        topic=topic,
        key=key,
        id=headers["ce_id"],
        type=headers["ce_type"],
        source=headers["ce_source"],
        subject=headers.get("ce_subject", ""),
        time=datetime.fromisoformat(headers["ce_time"]),
        value=value,
        correlation_id=headers.get("ce_correlationid"),
        causation_id=headers.get("ce_causationid"),
        project_id=headers.get("ce_projectid"),
        publish_seq=int(publish_seq) if publish_seq is not None else None,
        extra={name: text for name, text in headers.items() if name not in _KNOWN},
    )
