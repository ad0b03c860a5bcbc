"""Placement's settings: `YARD_PLACEMENT__…`."""

from yard_domain.names import DEFAULT_CLUSTER, DEFAULT_POOL
from yard_runtime.settings import ServiceSettings, service_config


class PlacementSettings(ServiceSettings):
    model_config = service_config("placement")

    cluster: str = DEFAULT_CLUSTER
    pool: str = DEFAULT_POOL
    pending_window: int = 1024
    """How many attempts of the ranked pending set one cycle looks at, at most. What is behind them waits unseen."""
    pending_glance: int = 64
    """It begins with so many, and two more per free device: under load the head takes all that there is."""
    attention_limit: int = 300
    """How many attempts one cycle moves along."""
    blocked_notice_seconds: float = 1.0
    """A wait shorter than this is not worth an event."""
    start_deadline_seconds: float = 60.0
    """A gang whose tasks have not all started by then is stopped as a whole."""
    stop_grace_seconds: float = 10.0
    """Grace of stops that placement itself decides on."""
    reissue_after_seconds: float = 10.0
    """A command that a node's report does not know after this time is sent again."""
    keep_ended_seconds: float = 8 * 86_400
    """Longer than the requests stay in the log: a request that is read again must find its attempt."""
