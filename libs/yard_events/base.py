"""The base of every event model, and the table from type name to model."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from yard_domain.errors import Permanent
from yard_events.envelope import Envelope

_MODELS: dict[str, type["EventModel"]] = {}


class EventModel(BaseModel):
    """Data of one event type. Within a version only optional fields are added, so unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    TYPE: ClassVar[str]
    TOPIC: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "TYPE" in cls.__dict__:
            other = _MODELS.setdefault(cls.TYPE, cls)
            if other.__qualname__ != cls.__qualname__:
                raise TypeError(f"{cls.__qualname__} and {other.__qualname__} have the same type {cls.TYPE}")

    def key(self) -> str:
        """The partitioning key; what must stay in order shares one."""
        raise NotImplementedError

    def subject(self) -> str:
        """What the event is about; defaults to its key."""
        return self.key()

    def project(self) -> str | None:
        return getattr(self, "project_id", None)


def models() -> dict[str, type[EventModel]]:
    """Every known event type. Importing `yard_events.types` fills the table."""
    return dict(_MODELS)


def wrap(
    event: EventModel,
    *,
    event_id: str,
    source: str,
    time: datetime,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    publish_seq: int | None = None,
    trace: Mapping[str, str] | None = None,
) -> Envelope:
    """The envelope of a new event. `trace`: the W3C headers of the span that made it."""
    return Envelope(
        topic=event.TOPIC,
        key=event.key(),
        id=event_id,
        type=event.TYPE,
        source=source,
        subject=event.subject(),
        time=time,
        value=event.model_dump_json(exclude_none=True).encode(),
        correlation_id=correlation_id,
        causation_id=causation_id,
        project_id=event.project(),
        publish_seq=publish_seq,
        extra=dict(trace or {}),
    )


def unwrap(envelope: Envelope) -> EventModel | None:
    """The typed data of a received event; None for a type that this version does not know.

    Raises Permanent when the value is not what its type promises.
    """
    model = _MODELS.get(envelope.type)
    if model is None:
        return None
    try:
        # The job document refuses unknown fields at the edge; inside events a newer writer may have added some.
        return model.model_validate_json(envelope.value, extra="ignore")
    except ValidationError as error:
        raise Permanent(f"{envelope.type} {envelope.id}: {error.error_count()} invalid fields: {error}") from error
