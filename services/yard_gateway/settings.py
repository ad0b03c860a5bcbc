"""The gateway's settings: `YARD_GATEWAY__…`."""

from pydantic import Field, SecretStr

from yard_runtime.settings import ServiceSettings, service_config


class GatewaySettings(ServiceSettings):
    model_config = service_config("gateway")

    http: str = "127.0.0.1:8080"
    """Where people reach gpuyard: `host:port`, or `unix:/path`. Port 0 takes a free one."""
    upstreams: dict[str, str] = {}
    """Owner → the base of its internal HTTP: `unix:/path`, `host:port` or `http(s)://…`."""
    admin_token: SecretStr | None = Field(default=None, min_length=16)
    """Token of the caller `admin`, made or renewed at start; the way in on a fresh installation."""

    max_body_bytes: int = 256 * 1024
    max_head_bytes: int = 32 * 1024
    """Request line and headers together."""
    head_timeout_seconds: float = 10.0
    """From the first byte of a request, or from connecting, to the end of its headers."""
    body_timeout_seconds: float = 30.0
    upstream_timeout_seconds: float = 10.0
    audit_timeout_seconds: float = 110.0
    max_wait_seconds: float = 300.0

    max_streams: int = 384
    """How many event streams, followed logs and waits together may be open; more get 503."""
    keep_alive_seconds: float = 15.0
    stream_page: int = 500
    """How many events a stream reads at a time."""

    submit_batch: int = 256
    """How many submissions one transaction takes."""
    submit_queue: int = 4096
    """How many submissions may wait for their transaction; more get 503."""

    principal_cache_seconds: float = 5.0
    """For how long another gateway process may not notice a revoked token; in this one it acts at once."""

    keep_events_seconds: float = 30 * 86_400
    keep_ended_jobs_seconds: float = 30 * 86_400
    keep_idempotency_seconds: float = 7 * 86_400
    prune_every_seconds: float = 600.0
