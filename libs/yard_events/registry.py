"""The topics: what each carries, who writes it, what its key is and how long it stays.

This is the one list; buses create their topics from it and `schemas/` is generated from it.
"""

from dataclasses import dataclass
from enum import StrEnum

DAY = 86_400


class Policy(StrEnum):
    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions` is the count on a first start; afterwards the stored count rules, for it never changes in place."""

    name: str
    writer: str
    key: str
    policy: Policy
    retention_seconds: int
    partitions: int = 1


_TOPICS = (
    Topic("yard.jobs.requests.v1", "gateway", "job", Policy.DELETE, 7 * DAY),
    Topic("yard.jobs.events.v1", "admission", "job", Policy.DELETE, 30 * DAY),
    Topic("yard.queues.state.v1", "admission", "queue", Policy.COMPACT, 7 * DAY),
    Topic("yard.placement.requests.v1", "admission", "cluster/pool", Policy.DELETE, 7 * DAY),
    Topic("yard.placement.decisions.v1", "placement", "cluster/pool", Policy.DELETE, 30 * DAY),
    Topic("yard.nodes.commands.v1", "placement", "node", Policy.DELETE, 1 * DAY),
    Topic("yard.nodes.events.v1", "agent", "node", Policy.DELETE, 7 * DAY),
    Topic("yard.inventory.state.v1", "inventory", "node", Policy.COMPACT, 7 * DAY),
    Topic("yard.billing.usage.v1", "billing", "project", Policy.DELETE, 400 * DAY),
)

CONSUMING_SERVICES = ("gateway", "inventory", "admission", "placement", "billing")


def dead_letter_topic(service: str) -> str:
    """Where a service tells of records that it cannot handle."""
    return f"yard.dlq.{service}.v1"


TOPICS: dict[str, Topic] = {topic.name: topic for topic in _TOPICS} | {
    name: Topic(name, service, "original", Policy.DELETE, 30 * DAY)
    for service in CONSUMING_SERVICES
    for name in [dead_letter_topic(service)]
}

JOBS_REQUESTS = "yard.jobs.requests.v1"
JOBS_EVENTS = "yard.jobs.events.v1"
QUEUES_STATE = "yard.queues.state.v1"
PLACEMENT_REQUESTS = "yard.placement.requests.v1"
PLACEMENT_DECISIONS = "yard.placement.decisions.v1"
NODES_COMMANDS = "yard.nodes.commands.v1"
NODES_EVENTS = "yard.nodes.events.v1"
INVENTORY_STATE = "yard.inventory.state.v1"
BILLING_USAGE = "yard.billing.usage.v1"
