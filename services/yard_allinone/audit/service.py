"""The audit as a service: it owns nothing, consumes nothing and answers the gateway."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from yard_allinone.audit.audit import audit
from yard_runtime.service import Runtime

_PAUSE_SECONDS = 1.5


class AuditService:
    """Implements `yard_runtime.service.Service`. One audit at a time: it is a heavy reader."""

    name = "audit"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._one = asyncio.Lock()

    def api(self) -> FastAPI | None:
        app = FastAPI(title="audit", openapi_url=None)

        @app.get("/audit")
        async def run_audit() -> dict[str, Any]:
            async with self._one:
                return await audit(self._runtime.engine, self._runtime.clock, _PAUSE_SECONDS)

        return app

    async def run(self, ready: Callable[[], None]) -> None:
        ready()
        await asyncio.Event().wait()
