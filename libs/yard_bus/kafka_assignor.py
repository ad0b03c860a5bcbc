"""Which member of a service's group is active: one has all partitions, the others stand by.

A service's handlers, cycles and tables are written for one active instance (units of work never interleave, memory
follows the tables), so its partitions move together. The active one stays active for as long as it is a member:
an instance that joins, or comes back after a restart, takes nothing away. See docs/decisions/0007.
"""
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportAssignmentType=false
# aiokafka comes without stubs.

from collections.abc import Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_VERSION = 0


class SingleActiveAssignor(AbstractPartitionAssignor):
    """One per member; `active_since` (milliseconds, None as a standby) is what it tells the member that decides."""

    name = "yard-single-active"

    def __init__(self) -> None:
        self.active_since: int | None = None

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:  # type: ignore[override]
        claim = b"" if self.active_since is None else str(self.active_since).encode()
        return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), claim)

    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        chosen = choose({member: metadata.user_data for member, metadata in members.items()})
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        everything = [(topic, sorted(cluster.partitions_for_topic(topic) or ())) for topic in topics]
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, everything if member == chosen else [], b"")
            for member in members
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:  # type: ignore[override]
        """Nothing: the session learns of it from its listener."""


def choose(claims: Mapping[str, bytes]) -> str:
    """The member that claims to be active; of several (one was frozen and does not know yet) the newest; else any."""

    def rank(member: str) -> tuple[int, str]:
        claim = claims[member] or b""
        return (int(claim) if claim.isdigit() else -1, member)

    return max(claims, key=rank)
