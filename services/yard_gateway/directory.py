"""Which queues and projects exist, as far as the gateway needs to know to refuse a submission at once.

Queues are told by admission on its state topic; projects, and a queue made a moment ago, are asked for when somebody
names one that is not known here. Neither is ever deleted in this version, so what is known stays true.
"""

import asyncio
from collections.abc import Callable, Iterable

from yard_gateway.database import Reads
from yard_gateway.tables import QUEUES
from yard_gateway.upstreams import Upstreams
from yard_runtime.http import Problem

ADMISSION = "admission"
_SHOWN = 20


class Directory:
    """What is known, and the asking. Names are only ever added."""

    def __init__(self, upstreams: Upstreams, *, monotonic: Callable[[], float]) -> None:
        self._upstreams = upstreams
        self._monotonic = monotonic
        self._known: dict[str, set[str]] = {"queues": set(), "projects": set()}
        self._asked: dict[str, float] = {}
        self._asking = {"queues": asyncio.Lock(), "projects": asyncio.Lock()}

    async def load(self, reads: Reads) -> None:
        """What was told before this start. Raises Retryable."""
        self.learn_queues(row.queue for row in await reads.rows(QUEUES.select()))

    def learn_queues(self, names: Iterable[str]) -> None:
        self._known["queues"].update(names)

    def learn_projects(self, names: Iterable[str]) -> None:
        self._known["projects"].update(names)

    async def require_queue(self, name: str) -> None:
        """Raises Problem 422 naming the known queues, or 503 when only admission could tell and is away."""
        await self._require("queues", "queue", name)

    async def require_project(self, name: str, *, field: str = "project") -> None:
        """As `require_queue`, for projects. `field`: where the name stood."""
        await self._require("projects", field, name)

    async def _require(self, kind: str, field: str, name: str) -> None:
        if name in self._known[kind]:
            return
        await self._ask(kind)
        if name not in self._known[kind]:
            known = sorted(self._known[kind])
            listed = ", ".join(known[:_SHOWN]) + (" and others" if len(known) > _SHOWN else "")
            message = f"there is no {kind[:-1]} {name!r}; known: {listed or 'none'}"
            raise Problem(422, "Invalid request", f"{field}: {message}", errors=[{"field": field, "message": message}])

    async def _ask(self, kind: str) -> None:
        """One question at a time; who came before it was asked uses its answer."""
        arrived = self._monotonic()
        async with self._asking[kind]:
            asked = self._asked.get(kind)
            if asked is not None and asked >= arrived:
                return
            began = self._monotonic()
            answer = await self._upstreams.call(ADMISSION, "GET", f"/{kind}")
            self._known[kind].update(str(item["name"]) for item in answer["items"])
            self._asked[kind] = began
