"""The embedded log's housekeeping as a service: once an hour, by whichever process runs it."""

from collections.abc import Callable

import structlog
from fastapi import FastAPI

from yard_bus.retention import apply_retention
from yard_domain.errors import Retryable
from yard_runtime.service import Runtime

_log = structlog.get_logger("yard.retention")


class RetentionService:
    """Implements `yard_runtime.service.Service`."""

    name = "retention"

    def __init__(self, runtime: Runtime, interval_seconds: float = 3600.0) -> None:
        self._runtime = runtime
        self._interval_seconds = interval_seconds

    def api(self) -> FastAPI | None:
        return None

    async def run(self, ready: Callable[[], None]) -> None:
        ready()
        while True:
            await self._runtime.clock.sleep(self._interval_seconds)
            try:
                removed = await apply_retention(self._runtime.engine, self._runtime.clock.now())
            except Retryable as error:
                _log.warning("retention waits for the database", error=str(error))
                continue
            _log.info("retention applied", removed=removed)
