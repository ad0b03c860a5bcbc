"""A desk at which tests play everybody around placement: admission, inventory, agents; and look at what it says.

Events go through the real log; handlers and the cycle run in real units of work under the real term, and after each of
them the invariants are checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from support.admission import log_of
from support.feed import START, ManualClock
from support.log import events_of
from yard_allinone.audit.checks import CHECKS
from yard_billing.spans import Account, open_account
from yard_bus.consumer import Received
from yard_domain.errors import Conflict
from yard_events import registry, types
from yard_events.base import EventModel, wrap
from yard_placement.app import build
from yard_placement.settings import PlacementSettings
from yard_runtime.service import EventService, Runtime
from yard_store.unit_of_work import Ownership, Store

SCOPE = "local/default"
TOPICS_IN = (registry.PLACEMENT_REQUESTS, registry.NODES_EVENTS, registry.INVENTORY_STATE)
_LEDGER_CHECKS = [
    check
    for check in CHECKS
    if check.invariant in ("INV-1", "INV-2", "INV-3", "INV-10") and "admission." not in check.sql
]
GIB = 2**30
_RENDEZVOUS = {"master_addr": "h", "master_port": 1}


def device(uuid: str, index: int, *, model: str = "H100", healthy: bool = True) -> types.DeviceFacts:
    return types.DeviceFacts(uuid=uuid, index=index, model=model, memory_bytes=80 * GIB, healthy=healthy)


def place_request(name: str, *, age: int = 0, pool: str = "default", **spec: Any) -> types.PlaceAttempt:
    """`age`: how many seconds after the others its job was submitted."""
    tasks = {key: spec.pop(key) for key in ("count", "gpus", "gpu_models", "cpus", "memory") if key in spec}
    return types.PlaceAttempt.model_validate(
        {
            "cluster": "local",
            "pool": pool,
            "attempt_id": f"job-{name}-a1",
            "job_id": f"job-{name}",
            "project_id": "default",
            "attempt": 1,
            "queue": "default",
            "name": name,
            "priority": spec.pop("priority", 0),
            "submitted_at": START + timedelta(seconds=age),
            "tasks": tasks,
            "run": {"command": ["true"], "env": {"A": "1"}},
            **spec,
        }
    )


@dataclass
class PoolDesk:
    runtime: Runtime
    clock: ManualClock
    service: EventService
    owner: Ownership
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS_IN, 0))
    dirty: bool = True
    ages: int = 0
    epochs: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, types.InventoryNode] = field(default_factory=dict)

    @classmethod
    async def open(cls, runtime: Runtime, clock: ManualClock | None = None, **settings: Any) -> "PoolDesk":
        clock = clock or ManualClock()
        runtime = replace(runtime, clock=clock)
        service = await build(PlacementSettings(**settings), runtime)
        desk = cls(runtime, clock, service, await service.store.take(SCOPE, runtime.instance))
        desk.store.on_dirty(desk._mark)
        return desk

    async def reopened(self) -> "PoolDesk":
        """Another process takes over, with nothing but what is stored."""
        self.store.off_dirty(self._mark)
        service = await build(PlacementSettings(), self.runtime)
        desk = replace(self, service=service, owner=await service.store.take(SCOPE, "next"), dirty=True)
        desk.store.on_dirty(desk._mark)
        return desk

    @property
    def store(self) -> Store:
        return self.service.store

    def _mark(self, scope: str) -> None:
        self.dirty = self.dirty or scope == SCOPE

    # --- what admission, inventory and agents do ---------------------------------------------------------------------

    async def node(self, name: str = "n1", gpus: int = 2, *, model: str = "H100", settle: bool = True) -> None:
        """A node registers and inventory describes it."""
        self.hardware[name] = types.InventoryNode(
            node=name,
            cluster="local",
            pool="default",
            state="ready",
            cordoned=False,
            generation=1,
            boot_id="boot",
            agent_url=f"http://{name}",
            cpus=16.0,
            memory_bytes=64 * GIB,
            devices=[device(f"{name}/{i}", i, model=model) for i in range(gpus)],
            last_contact=self.clock.now(),
            at=self.clock.now(),
        )
        await self.send(self.registration(name), self.hardware[name], settle=settle)

    def registration(self, name: str, epoch: str = "boot/journal") -> types.NodeRegistered:
        self.epochs[name] = epoch
        node = self.hardware[name]
        boot_id, _, journal_id = epoch.partition("/")
        return types.NodeRegistered(
            node=name,
            observed_at=self.clock.now(),
            cluster=node.cluster,
            pool=node.pool,
            boot_id=boot_id,
            journal_id=journal_id,
            epoch=epoch,
            agent_url=node.agent_url,
            advertise_addr="127.0.0.1",
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            devices=node.devices,
        )

    async def registers(self, name: str, epoch: str, *, settle: bool = True) -> None:
        await self.send(self.registration(name, epoch), settle=settle)

    async def inventory(self, name: str = "n1", *, settle: bool = True, **change: Any) -> None:
        """What inventory says changes: `state`, `cordoned`, `devices`, `boot_id`, …"""
        self.hardware[name] = self.hardware[name].model_copy(update={"at": self.clock.now()} | change)
        await self.send(self.hardware[name], settle=settle)

    async def place(
        self, name: str, *, settle: bool = True, trace: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        """Each is a second younger than the one before; `age` says otherwise."""
        self.ages += 1
        await self.send(place_request(name, age=spec.pop("age", self.ages), **spec), settle=settle, trace=trace)

    async def stop(
        self,
        name: str,
        reason: str = "cancelled",
        grace: float = 3.0,
        *,
        settle: bool = True,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        await self.send(
            types.StopAttempt(**_attempt(name), reason=reason, grace_seconds=grace), settle=settle, trace=trace
        )

    async def withdraw(self, name: str, *, settle: bool = True) -> None:
        await self.send(types.WithdrawAttempt(**_attempt(name)), settle=settle)

    async def ready(self, name: str, *ranks: int) -> None:
        """Rank 0's agent names the address of the rendezvous."""
        tasks = [(await self._task(name, rank)) | ({} if rank else _RENDEZVOUS) for rank in ranks or (0,)]
        await self.send(*[types.TaskReady(**task) for task in tasks])

    async def started(self, name: str, *ranks: int, settle: bool = True) -> None:
        await self.send(*[types.TaskStarted(**(await self._task(name, rank))) for rank in ranks or (0,)], settle=settle)

    async def exited(self, name: str, *ranks: int, code: int = 0, settle: bool = True, **end: Any) -> None:
        end = {"outcome": "failed" if code else "succeeded", "reason": "exit_code", "exit_code": code} | end
        await self.send(
            *[types.TaskExited(**(await self._task(name, rank)), **end) for rank in ranks or (0,)], settle=settle
        )

    async def emptied(self, name: str, *ranks: int, settle: bool = True) -> None:
        await self.send(
            *[types.DevicesEmptied(**(await self._task(name, rank))) for rank in ranks or (0,)], settle=settle
        )

    async def over(self, name: str, *ranks: int, code: int = 0) -> None:
        """Started, exited and emptied, in one batch."""
        await self.started(name, *ranks, settle=False)
        await self.exited(name, *ranks, code=code, settle=False)
        await self.emptied(name, *ranks)

    async def report(self, name: str, *allocations: tuple[str, int, str], epoch: str | None = None) -> None:
        """(allocation id without `job-` and `a1`, such as `x.t0`; last command seen; state) of all that it knows."""
        known = [
            types.ReportedAllocation(allocation_id=_allocation_id(short), command_seq=seq, state=state)
            for short, seq, state in allocations
        ]
        await self.send(
            types.NodeReport(
                node=name, observed_at=self.clock.now(), epoch=epoch or self.epochs[name], allocations=known
            )
        )

    async def _task(self, name: str, rank: int) -> dict[str, Any]:
        allocation_id = f"job-{name}-a1.t{rank}"
        [row] = await self.rows(f"SELECT node FROM placement.allocations WHERE allocation_id = '{allocation_id}'")
        return {"node": row["node"], "observed_at": self.clock.now(), "allocation_id": allocation_id}

    async def send(self, *events: EventModel, settle: bool = True, trace: Mapping[str, str] | None = None) -> None:
        now = self.clock.now()
        ids = self.runtime.ids
        await self.runtime.bus.publish(
            [wrap(e, event_id=ids.new("evt"), source="tests", time=now, trace=trace) for e in events]
        )
        if settle:
            await self.settle()

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    # --- what placement does -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Handlers and the cycle, until nothing is left to read and nothing to decide."""
        for _ in range(100):
            found = [(topic, await log_of(self.runtime, topic, self.read[topic])) for topic in TOPICS_IN]
            for topic, records in found:
                if records:
                    await self.handle(topic, records)
                    self.read[topic] = records[-1].record.offset + 1
            if not any(records for _, records in found) and not await self.cycle_if_due():
                return
        raise AssertionError("placement does not come to rest")

    async def handle(self, topic: str, records: Sequence[Received]) -> None:
        async with self.store.unit_of_work() as uow:
            await self.service.handlers[topic](records, uow)
        await self.check()

    async def cycle_if_due(self) -> bool:
        """What the scope's runner would do next; False when it would wait."""
        async with self.store.unit_of_work() as uow:
            due = await uow.next_due(SCOPE)
        if not self.dirty and (due is None or due > self.clock.now()):
            return False
        self.dirty = False
        await self.cycle()
        return True

    async def cycle(self) -> None:
        try:
            async with self.store.unit_of_work() as uow:
                await uow.fence(self.owner)
                more = await self.service.scopes[SCOPE](uow, SCOPE)
        except Conflict:
            self.dirty = True
            raise
        self.dirty = self.dirty or more
        await self.check()

    # --- what there is to see ----------------------------------------------------------------------------------------

    async def check(self) -> None:
        """INV-1, 2, 3 and 10, by the audit's own queries."""
        for check in _LEDGER_CHECKS:
            assert await self.rows(check.sql) == [], f"{check.invariant}: {check.title}"

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        async with self.runtime.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(sa.text(sql))).mappings()]

    async def state(self, name: str) -> str:
        [row] = await self.rows(f"SELECT state FROM placement.attempts WHERE job_id = 'job-{name}'")
        return row["state"]

    async def holders(self) -> dict[str, str]:
        """Device → the task that holds it, such as `x.t0`."""
        found = await self.rows("SELECT uuid, allocation_id FROM placement.devices WHERE allocation_id IS NOT NULL")
        return {row["uuid"]: _short(row["allocation_id"]) for row in found}

    async def decisions(self, kind: type[Any] = EventModel) -> list[Any]:
        return [e for e in await events_of(self.runtime, registry.PLACEMENT_DECISIONS) if isinstance(e, kind)]

    async def decided(self, name: str) -> list[str]:
        """What was decided about the job, in short: `granted n1`, `blocked no_nodes!`, `exited failed exit_code`."""
        return [_said(e) for e in await self.decisions() if e.job_id == f"job-{name}"]

    async def sent(self) -> list[Any]:
        """The commands to all agents, in order."""
        return await events_of(self.runtime, registry.NODES_COMMANDS)

    async def commands(self) -> list[str]:
        """What the agents were told, in order: `n1 start x.t0 1`, with the number of the command."""
        words = {types.PrepareTask: "prepare", types.StartTask: "start", types.StopTask: "stop"}
        return [f"{e.node} {words[type(e)]} {_short(e.allocation_id)} {e.command_seq}" for e in await self.sent()]

    async def everything(self) -> tuple[Any, ...]:
        """All of placement's tables and how much it has said: equal before and after what must change nothing."""
        tables = {
            "attempts": await self.rows("SELECT * FROM placement.attempts ORDER BY attempt_id"),
            "allocations": await self.rows("SELECT * FROM placement.allocations ORDER BY allocation_id"),
            "devices": await self.rows("SELECT * FROM placement.devices ORDER BY uuid"),
            "nodes": await self.rows("SELECT * FROM placement.nodes ORDER BY name"),
            "timers": await self.rows("SELECT kind, key, due_at FROM placement.timers ORDER BY kind, key"),
        }
        said = await self.rows(
            "SELECT t.name, count(*) FROM yard_bus.log JOIN yard_bus.topic t USING (topic_id) "
            f"WHERE t.name NOT IN {TOPICS_IN} GROUP BY t.name ORDER BY t.name"
        )
        return tables, said

    async def check_bills(self) -> None:
        """INV-7: what billing makes of the decisions is what the ledger has, for every released allocation."""
        accounts: dict[str, Account] = {}
        billed: dict[str, int] = {}
        for event in await self.decisions():
            match event:
                case types.AttemptGranted():
                    accounts |= {a.allocation_id: open_account(event, a) for a in event.allocations}
                    continue
                case types.AttemptLost():
                    spans = [(i, accounts[i].lose(event.ledger_time, event.last_contact)) for i in event.allocation_ids]
                case types.AllocationReleased():
                    spans = [(event.allocation_id, accounts[event.allocation_id].release(event.ledger_time))]
                case types.AttemptRecovered():
                    for allocation_id in event.allocation_ids:
                        accounts[allocation_id].recover(event.ledger_time)
                    continue
                case _:
                    continue
            for allocation_id, span in spans:
                billed[allocation_id] = billed.get(allocation_id, 0) + (span.micros if span is not None else 0)
        ledger = await self.rows(
            "SELECT allocation_id, "
            "(extract(epoch FROM released_at - granted_at) * 1000000)::bigint - lost_micros AS us "
            "FROM placement.allocations WHERE released_at IS NOT NULL"
        )
        assert {row["allocation_id"]: row["us"] for row in ledger} == {
            i: us for i, us in billed.items() if accounts[i].released
        }


def _attempt(name: str) -> dict[str, Any]:
    return {
        "cluster": "local",
        "pool": "default",
        "attempt_id": f"job-{name}-a1",
        "job_id": f"job-{name}",
        "project_id": "default",
    }


def _allocation_id(short: str) -> str:
    name, _, rank = short.partition(".")
    return f"job-{name}-a1.{rank}"


def _short(allocation_id: str) -> str:
    return allocation_id.removeprefix("job-").replace("-a1.", ".")


def _said(event: Any) -> str:
    word = event.TYPE.split(".")[2]
    match event:
        case types.AttemptGranted():
            return " ".join([word, *(allocation.node for allocation in event.allocations)])
        case types.AttemptBlocked():
            return f"{word} {event.reason}" + ("!" if event.hopeless else "")
        case types.AttemptExited():
            return f"{word} {event.outcome} {event.reason}"
        case types.AllocationReleased():
            return f"{word} {event.allocation_id.rpartition('.')[2]}"
        case types.AttemptLost() | types.AttemptRecovered():
            return " ".join([word, *(i.rpartition(".")[2] for i in event.allocation_ids)])
        case _:
            return word
