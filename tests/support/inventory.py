"""Inventory driven step by step: facts in, looks at the nodes, events and rows out."""

from functools import partial

from sqlalchemy import text

from support.feed import Feed, ManualClock, at
from support.log import events_of
from yard_events.registry import INVENTORY_STATE
from yard_events.types import DeviceFacts, InventoryNode, NodeRegistered, NodeReport
from yard_inventory.app import build
from yard_inventory.handlers import handle_node_events
from yard_inventory.settings import InventorySettings
from yard_runtime.service import EventService, Runtime
from yard_store.unit_of_work import Ownership

GIB = 2**30


def device(uuid: str, index: int = 0, **changes) -> DeviceFacts:
    return DeviceFacts(**({"uuid": uuid, "index": index, "model": "H100", "memory_bytes": 80 * GIB} | changes))


class Inventory:
    def __init__(
        self, service: EventService, runtime: Runtime, clock: ManualClock, settings: InventorySettings
    ) -> None:
        self.service = service
        self.store = service.store
        self.runtime = runtime
        self.clock = clock
        self._cycle = service.scopes[settings.cluster]
        self._scope = settings.cluster
        self._ownership: Ownership | None = None
        self.feed = Feed(self.store, partial(handle_node_events, cluster=settings.cluster), "yard/agent")
        self._read = 0

    async def start(self) -> None:
        """As a (re)start does: take the scope under a new term and look at once."""
        self._ownership = await self.store.take(self._scope, self.runtime.instance)
        await self.look()

    async def look(self) -> None:
        """Run the cycle as long as it says that there is more."""
        more = True
        while more:
            async with self.store.unit_of_work() as uow:
                assert self._ownership is not None
                await uow.fence(self._ownership)
                more = await self._cycle(uow, self._scope)

    async def look_at(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.look()

    async def wait_looking(self, seconds: float) -> None:
        """Let time pass, looking whenever a timer is due: what the runner of the scope does."""
        end = self.clock.now().timestamp() + seconds
        while (due := await self.due_in()) is not None and self.clock.now().timestamp() + due <= end:
            await self.look_at(due)
        self.clock.advance(end - self.clock.now().timestamp())

    async def due_in(self) -> float | None:
        """Seconds until the earliest timer."""
        async with self.store.unit_of_work() as uow:
            due = await uow.next_due(self._scope)
        return None if due is None else max(0.0, (due - self.clock.now()).total_seconds())

    def registered(self, node: str, *devices: DeviceFacts, boot_id: str = "b1", **changes) -> NodeRegistered:
        facts = {
            "node": node,
            "observed_at": self.clock.now(),
            "cluster": "local",
            "pool": "default",
            "boot_id": boot_id,
            "journal_id": "j1",
            "epoch": f"{boot_id}/j1",
            "agent_url": "http://127.0.0.1:9000",
            "advertise_addr": "127.0.0.1",
            "cpus": 8.0,
            "memory_bytes": 64 * GIB,
            "devices": list(devices) or [device(f"GPU-{node}-0"), device(f"GPU-{node}-1", 1)],
            "labels": {"zone": "a"},
        }
        return NodeRegistered(**(facts | changes))

    def report(self, node: str) -> NodeReport:
        return NodeReport(node=node, observed_at=self.clock.now(), epoch="b1/j1", allocations=[])

    async def register(self, *nodes: str) -> None:
        await self.feed.send(*(self.registered(node) for node in nodes))
        await self.look()

    async def hear(self, *nodes: str) -> None:
        await self.feed.send(*(self.report(node) for node in nodes))

    async def keep_hearing(self, seconds: int, *nodes: str) -> None:
        """Heartbeats of `nodes` every 5 s, with the looks that fall due between them."""
        for _ in range(seconds // 5):
            await self.wait_looking(5)
            await self.hear(*nodes)
            await self.look()

    async def emitted(self) -> list[InventoryNode]:
        """What was published since the last call."""
        events = await events_of(self.runtime, INVENTORY_STATE)
        new, self._read = events[self._read :], len(events)
        return [event for event in new if isinstance(event, InventoryNode)]

    async def told(self) -> list[tuple[str, str]]:
        """(node, state) of what was published since the last call."""
        return [(event.node, event.state) for event in await self.emitted()]

    async def rows(self, table: str) -> list[dict]:
        async with self.store.reading() as connection:
            found = await connection.execute(text(f"SELECT * FROM inventory.{table} ORDER BY 1"))
            return [dict(row) for row in found.mappings()]

    async def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in await self.rows("nodes")}


async def inventory_on(runtime: Runtime, clock: ManualClock, **settings) -> Inventory:
    chosen = InventorySettings(**settings)
    timed = at(runtime, clock)
    service = await build(chosen, timed)
    assert isinstance(service, EventService)
    return Inventory(service, timed, clock, chosen)
