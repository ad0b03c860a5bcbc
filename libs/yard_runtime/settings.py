"""Settings: one frozen tree per service, read from `YARD_<SERVICE>__<FIELD>`, shown redacted at start."""

from typing import Annotated, Any, Literal

from pydantic import Field, FilePath, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from yard_bus.kafka_options import KafkaOptions


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

    `listen` is where the owners' internal HTTP is served: `unix:/path` or `host:port`. `metrics_token` opens /metrics
    and nothing else. An agent on Kafka needs no database.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_", frozen=True, extra="ignore")

    database_url: str | None = None
    listen: str
    internal_token: SecretStr
    metrics_token: SecretStr | None = None
    log_level: str = "INFO"
    pool_size: int = 8


class KafkaSettings(BaseSettings):
    """`YARD_KAFKA` (brokers as `host:port,host:port`; without it the log is in PostgreSQL) and `YARD_KAFKA_<FIELD>`.

    `prefix` keeps two installations on one cluster apart. `partitions` and `replication` are for topics that are made;
    existing ones keep theirs.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_KAFKA_", frozen=True, extra="ignore")

    bootstrap: Annotated[str | None, Field(validation_alias="YARD_KAFKA")] = None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{0,60}$")] = ""
    partitions: Annotated[int, Field(ge=1, le=1000)] = 3
    replication: Annotated[int, Field(ge=1, le=10)] = 1

    def options(self) -> KafkaOptions | None:
        """What the bus needs; None without Kafka."""
        if self.bootstrap is None:
            return None
        return KafkaOptions(
            bootstrap=self.bootstrap,
            password=None if self.password is None else self.password.get_secret_value(),
            **self.model_dump(exclude={"bootstrap", "password"}),
        )
