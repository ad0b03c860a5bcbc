"""A desk at admission, on a fresh database."""

import pytest

from support.admission import Desk
from yard_runtime.service import Runtime


@pytest.fixture
async def desk(runtime: Runtime) -> Desk:
    """Queue `default` with a quota of 4 GPUs; reasons are told at once."""
    return await Desk.open(runtime)
