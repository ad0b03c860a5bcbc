"""A desk at placement, on a fresh database."""

import pytest

from support.placement import PoolDesk
from yard_runtime.service import Runtime


@pytest.fixture
async def desk(runtime: Runtime) -> PoolDesk:
    """One pool, no nodes yet; reasons are told at once."""
    return await PoolDesk.open(runtime, blocked_notice_seconds=0.0)
