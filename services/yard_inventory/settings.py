"""Inventory's settings: `YARD_INVENTORY__…`."""

from datetime import timedelta

from pydantic import model_validator

from yard_domain.names import DEFAULT_CLUSTER
from yard_inventory.liveness import Limits
from yard_runtime.settings import ServiceSettings, service_config


class InventorySettings(ServiceSettings):
    model_config = service_config("inventory")

    cluster: str = DEFAULT_CLUSTER
    """The one cluster whose nodes this inventory owns; it is also the scope of liveness."""
    suspect_after_seconds: float = 15.0
    """Silence after which a node gets no new work."""
    lost_after_seconds: float = 60.0
    """Silence after which a node's tasks count as lost."""
    recovery_grace_seconds: float = 30.0
    """After a silence of the whole cluster: how long nobody is declared lost, counted from the first contact."""
    standstill_seconds: float = 5.0
    """A look at the nodes that comes later than planned by more than this means that inventory itself stood still."""
    transitions_per_cycle: int = 500

    @model_validator(mode="after")
    def _suspect_comes_before_lost(self) -> "InventorySettings":
        if not 0 < self.suspect_after_seconds < self.lost_after_seconds:
            raise ValueError("suspect_after_seconds must be above zero and below lost_after_seconds")
        if self.recovery_grace_seconds < 0 or self.standstill_seconds <= 0 or self.transitions_per_cycle < 1:
            raise ValueError("recovery_grace_seconds, standstill_seconds and transitions_per_cycle must be positive")
        return self

    def limits(self) -> Limits:
        return Limits(
            suspect_after=timedelta(seconds=self.suspect_after_seconds),
            lost_after=timedelta(seconds=self.lost_after_seconds),
            recovery_grace=timedelta(seconds=self.recovery_grace_seconds),
        )
