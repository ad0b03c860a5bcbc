import pytest

from support.feed import ManualClock
from support.inventory import Inventory, inventory_on
from yard_runtime.service import Runtime


@pytest.fixture
async def inventory(runtime: Runtime) -> Inventory:
    """A started inventory with the default limits: suspect after 15 s, lost after 60 s, grace 30 s."""
    driven = await inventory_on(runtime, ManualClock())
    await driven.start()
    return driven
