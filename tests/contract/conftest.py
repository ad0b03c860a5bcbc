"""Logs of failing handlers are expected here: plain tracebacks, for drawing boxes around locals takes seconds."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )
    yield
    structlog.reset_defaults()
