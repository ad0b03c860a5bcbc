"""Settings: one frozen tree per service, read from `YARD_<SERVICE>__<FIELD>`, shown redacted at start."""

from typing import Any

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """Base of every service's settings. Subclasses set `model_config = service_config("placement")`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    def redacted(self) -> dict[str, Any]:
        """All fields, secrets masked, for the log line at start."""
        return {name: "[redacted]" if isinstance(value, SecretStr) else value for name, value in self}


def service_config(service: str) -> SettingsConfigDict:
    return SettingsConfigDict(
        env_prefix=f"YARD_{service.upper()}__", frozen=True, extra="forbid", env_nested_delimiter="__"
    )


class ProcessSettings(BaseSettings):
    """What a process of services needs: `YARD_DATABASE_URL`, `YARD_LISTEN`, `YARD_INTERNAL_TOKEN`, `YARD_LOG_LEVEL`.

    `listen` is where the owners' internal HTTP is served: `unix:/path` or `host:port`.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_", frozen=True, extra="ignore")

    database_url: str
    listen: str
    internal_token: SecretStr
    log_level: str = "INFO"
    pool_size: int = 8
