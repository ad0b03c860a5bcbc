"""Reading back what was appended to the embedded bus."""

from sqlalchemy import text

from yard_events.base import EventModel, unwrap
from yard_events.envelope import from_headers
from yard_runtime.service import Runtime

_READ = text(
    "SELECT t.name, l.key, l.headers::json AS headers, l.value FROM yard_bus.log l "
    "JOIN yard_bus.topic t USING (topic_id) WHERE t.name = :topic ORDER BY l.partition, l.log_offset"
)


async def events_of(runtime: Runtime, topic: str) -> list[EventModel]:
    """All events of a topic, in order, decoded."""
    async with runtime.engine.connect() as connection:
        rows = (await connection.execute(_READ, {"topic": topic})).all()
    found = [unwrap(from_headers(row.name, row.key, row.headers, row.value)) for row in rows]
    return [event for event in found if event is not None]
