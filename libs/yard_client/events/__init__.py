"""Events of gpuyard from its Kafka, typed, for programs that follow what happens. Needs the extra `gpuyard[events]`.

from yard_client.events import EventConsumer
from yard_events.types import JobFailed, JobSucceeded

async with EventConsumer("kafka:9092", group="my-reports", types=[JobSucceeded, JobFailed]) as consumer:
    async for event in consumer:
        print(event.data.job_id, event.data.state)
"""

from yard_client.events.checkpoint import Checkpoint, FileCheckpoint
from yard_client.events.consumer import EventConsumer
from yard_client.events.errors import CheckpointUnreadable, KafkaRefused, KafkaUnreachable, PositionLost, TopicMissing
from yard_client.events.position import Place, Position
from yard_client.events.received import Counts, MalformedRecord, ReceivedEvent
from yard_client.events.security import KafkaSecurity

__all__ = [
    "Checkpoint",
    "CheckpointUnreadable",
    "Counts",
    "EventConsumer",
    "FileCheckpoint",
    "KafkaRefused",
    "KafkaSecurity",
    "KafkaUnreachable",
    "MalformedRecord",
    "Place",
    "Position",
    "PositionLost",
    "ReceivedEvent",
    "TopicMissing",
]
