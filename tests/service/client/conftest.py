"""Each test has a gateway on this machine's loopback, and `yard` configured for it by its environment."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateway_double import TOKEN, GatewayDouble, gateway_double
from support.yard_command import Yard


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
