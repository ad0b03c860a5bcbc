"""Topics of a test's own, and a bound on every test."""

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.event_log import Log, log_on
from yard_events.registry import JOBS_EVENTS, NODES_EVENTS


@pytest.fixture
async def log(kafka: str) -> AsyncIterator[Log]:
    async with log_on(kafka, topics=[JOBS_EVENTS, NODES_EVENTS]) as made:
        yield made


@pytest.fixture
async def wide_log(kafka: str) -> AsyncIterator[Log]:
    """Four partitions."""
    async with log_on(kafka, topics=[JOBS_EVENTS], partitions=4) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"g{secrets.token_hex(5)}"


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> None:
    """A missing event fails a test instead of hanging it. The bound is on the test's own task, which a fixture's
    timeout would not reach."""
    function = request.function
    if not asyncio.iscoroutinefunction(function):
        return

    @functools.wraps(function)
    async def bounded(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(40):
            await function(*arguments, **named)

    request.node.obj = bounded
