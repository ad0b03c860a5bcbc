"""The one suite that every bus must pass. A new implementation adds its name and its harness here."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.bus_harness import BusHarness, PostgresHarness
from support.contract import ALL, contract_store
from support.kafka_harness import KafkaHarness, kafka_runtimes
from yard_runtime.service import Runtime
from yard_store.unit_of_work import Store


@pytest.fixture(params=["postgres", "kafka"])
async def bus_harness(
    request: pytest.FixtureRequest, runtime: Runtime, second_runtime: Runtime
) -> AsyncIterator[BusHarness]:
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:  # short: a unix socket's path has 107 bytes
        if request.param == "postgres":
            embedded = PostgresHarness(runtime, second_runtime, Path(folder))
            await embedded.ensure_topics(ALL)
            yield embedded
            return
        async with kafka_runtimes(request.getfixturevalue("kafka"), runtime, second_runtime) as (first, second):
            harness = KafkaHarness(first, second, Path(folder))
            await harness.ensure_topics(ALL)
            yield harness


@pytest.fixture
async def store(bus_harness: BusHarness) -> Store:
    return await contract_store(bus_harness.first)


@pytest.fixture
async def second_store(bus_harness: BusHarness, store: Store) -> Store:
    return await contract_store(bus_harness.second)
