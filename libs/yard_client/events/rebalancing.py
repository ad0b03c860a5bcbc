"""From aiokafka's callback to the consumer."""
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
# aiokafka comes without stubs.

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiokafka import ConsumerRebalanceListener


class Rebalances(ConsumerRebalanceListener):
    """Partitions that come are noticed by their first record."""

    def __init__(self, revoked: Callable[[Collection[Any]], Awaitable[None]]) -> None:
        self._revoked = revoked

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        await self._revoked(revoked)

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        return
