"""How to reach Kafka, and how topics are made there."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`bootstrap`: `host:port` of some brokers, separated by commas. The rest has the meaning that Kafka gives it.

    `prefix` stands before every topic, group and transactional.id: two installations on one cluster stay apart.
    `partitions` is the count of a topic made by us where the registry asks for one; it never changes afterwards.
    """

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    prefix: str = ""
    partitions: int = 3
    replication: int = 1
    request_timeout_ms: int = 10_000
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500

    def connection(self) -> dict[str, Any]:
        """Arguments that every aiokafka client takes. Raises OSError or ssl.SSLError for bad certificates."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.bootstrap.split(",") if server.strip()],
            "security_protocol": self.security_protocol,
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": 50,
            "metadata_max_age_ms": 60_000,
        }
        if self.security_protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
            arguments["ssl_context"] = context
        if self.security_protocol.startswith("SASL"):
            arguments |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return arguments
