"""One running gateway per test, on a fresh database."""

from collections.abc import AsyncIterator

import pytest

from support.gateway import Gateway, running_gateway
from yard_runtime.service import Runtime


@pytest.fixture
async def gateway(runtime: Runtime) -> AsyncIterator[Gateway]:
    async with running_gateway(runtime) as running:
        yield running
