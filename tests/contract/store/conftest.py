"""The store on a real PostgreSQL, once under the real clock and once under one that the test moves."""

from dataclasses import replace

import pytest

from support.contract import ONE, OUT, TABLES, contract_store
from support.virtual_clock import VirtualClock
from yard_bus.postgres import PostgresBus
from yard_runtime.service import Runtime
from yard_store.unit_of_work import Store


@pytest.fixture
async def store(runtime: Runtime) -> Store:
    await runtime.bus.ensure_topics([ONE, OUT])
    return await contract_store(runtime)


@pytest.fixture
async def second_store(store: Store, second_runtime: Runtime) -> Store:
    """The same service in another process."""
    assert isinstance(second_runtime.bus, PostgresBus)
    await second_runtime.bus.load_topics()
    return second_runtime.store(TABLES, "contract")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def timed_store(runtime: Runtime, store: Store, clock: VirtualClock) -> Store:
    """The service under virtual time."""
    return replace(runtime, clock=clock).store(TABLES, "contract")
