"""Which member of a service's group is active: one has all partitions, the others stand by.

A service's handlers, cycles and tables are written for one active instance (units of work never interleave, memory
follows the tables), so its partitions move together. The active one stays active for as long as it is a member:
an instance that joins, or comes back after a restart, takes nothing away. See docs/decisions/0007.
"""
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportAssignmentType=false
# aiokafka comes without stubs.

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_VERSION = 0


class SingleActiveAssignor(AbstractPartitionAssignor):
    """One per member. `joined_at` and `active_since` (milliseconds; None as a standby) are what it tells the member
    that decides. `partitions` is how many each topic has, as far as this member knows."""

    name = "yard-single-active"

    def __init__(self, joined_at: int) -> None:
        self.joined_at = joined_at
        self.active_since: int | None = None
        self.partitions: dict[str, int] = {}

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:  # type: ignore[override]
        claim = Claim(self.joined_at, self.active_since)
        return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), claim.encode())

    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        chosen = choose({member: Claim.decode(metadata.user_data) for member, metadata in members.items()})
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        everything = [(topic, self._partitions_of(topic, cluster)) for topic in topics]
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, everything if member == chosen else [], b"")
            for member in members
        }

    def _partitions_of(self, topic: str, cluster: ClusterMetadata) -> list[int]:
        """Counts never change. What the brokers say at the moment may be nothing: a broker that has just begun knows
        few topics, and a topic that was deleted has readers who must be told. Left out of the assignment, neither would
        be missed."""
        if topic in self.partitions:
            return list(range(self.partitions[topic]))
        return sorted(cluster.partitions_for_topic(topic) or ())

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:  # type: ignore[override]
        """Nothing: the session learns of it from its listener."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says of itself, in milliseconds since 1970 by its own clock."""

    joined_at: int
    active_since: int | None

    def encode(self) -> bytes:
        return json.dumps([self.joined_at, self.active_since]).encode()

    @classmethod
    def decode(cls, text: bytes | None) -> "Claim":
        """What cannot be read is from a member that knows nothing of claims: it comes last."""
        try:
            joined_at, active_since = json.loads(text or b"")
            return cls(int(joined_at), None if active_since is None else int(active_since))
        except (ValueError, TypeError):
            return cls(2**62, None)


def choose(claims: Mapping[str, Claim]) -> str:
    """The member that is active; of several (one was frozen and does not know yet) the one that became it last. Where
    none is, the one that has waited longest."""

    def rank(member: str) -> tuple[int, int, str]:
        claim = claims[member]
        return (-1 if claim.active_since is None else claim.active_since, -claim.joined_at, member)

    return max(claims, key=rank)
