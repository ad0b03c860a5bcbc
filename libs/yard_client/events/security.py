"""How to be let in by Kafka: TLS and SASL."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """The settings have the meaning that Kafka gives them; protocols: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."""

    protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if self.protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ValueError(f"protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not {self.protocol!r}")
        if self.protocol.startswith("SASL") and not (self.username and self.password):
            raise ValueError(f"{self.protocol} needs a username and a password")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """As gpuyard's own services have it: YARD_KAFKA_SECURITY_PROTOCOL, YARD_KAFKA_USERNAME and so on."""

        def path(name: str) -> Path | None:
            value = environment.get(f"YARD_KAFKA_{name}")
            return Path(value) if value else None

        return cls(
            protocol=environment.get("YARD_KAFKA_SECURITY_PROTOCOL") or "PLAINTEXT",
            sasl_mechanism=environment.get("YARD_KAFKA_SASL_MECHANISM") or "SCRAM-SHA-512",
            username=environment.get("YARD_KAFKA_USERNAME"),
            password=environment.get("YARD_KAFKA_PASSWORD"),
            ca_file=path("CA_FILE"),
            cert_file=path("CERT_FILE"),
            key_file=path("KEY_FILE"),
        )

    def arguments(self) -> dict[str, Any]:
        """For aiokafka's clients. Raises OSError or ssl.SSLError for bad certificates."""
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
            arguments["ssl_context"] = context
        if self.protocol.startswith("SASL"):
            arguments |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return arguments
