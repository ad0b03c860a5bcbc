from collections.abc import AsyncIterator

import httpx
import pytest

from support.billing import Billing, billing_on
from support.feed import ManualClock
from yard_runtime.http import install_problem_handlers
from yard_runtime.service import Runtime


@pytest.fixture
async def billing(runtime: Runtime) -> Billing:
    return await billing_on(runtime, ManualClock())


@pytest.fixture
async def http(billing: Billing) -> AsyncIterator[httpx.AsyncClient]:
    app = billing.service.api()
    assert app is not None
    install_problem_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://billing") as client:
        yield client
