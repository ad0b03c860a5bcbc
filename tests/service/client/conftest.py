"""The command line as people run it: a process of its own against a gateway on this machine's loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gateway_double import TOKEN, GatewayDouble, gateway_double

COMMAND = (sys.executable, "-m", "yard_client.cli.main")


@dataclass
class Yard:
    """Runs `yard` with a home folder and environment of the test's own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=30, env={**self.environment, **environment}
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **environment},
        )


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    with gateway_double() as gateway:
        yield gateway


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment without any configuration."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "YARD_RETRY_SECONDS": "5"}


@pytest.fixture
def yard(gateway: GatewayDouble, home: dict[str, str]) -> Yard:
    return Yard({**home, "YARD_URL": gateway.url, "YARD_TOKEN": TOKEN})


@pytest.fixture
def unconfigured(home: dict[str, str]) -> Yard:
    return Yard(home)
