"""The one suite that every bus must pass. A new implementation adds its name and its harness here."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.bus_harness import BusHarness, PostgresHarness
from support.contract import MANY, ONE, OUT, contract_store
from yard_runtime.service import Runtime
from yard_store.unit_of_work import Store


@pytest.fixture(params=["postgres"])
async def bus_harness(
    request: pytest.FixtureRequest, runtime: Runtime, second_runtime: Runtime
) -> AsyncIterator[BusHarness]:
    harnesses = {"postgres": PostgresHarness}
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:  # short: a unix socket's path has 107 bytes
        harness: BusHarness = harnesses[request.param](runtime, second_runtime, Path(folder))
        await harness.ensure_topics([ONE, MANY, OUT])
        yield harness


@pytest.fixture
async def store(bus_harness: BusHarness) -> Store:
    return await contract_store(bus_harness.first)


@pytest.fixture
async def second_store(bus_harness: BusHarness, store: Store) -> Store:
    return await contract_store(bus_harness.second)
