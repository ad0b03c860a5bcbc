"""Nodes of a test's own: real agents on the bus, commanded as placement commands them, and what they told."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from support.processes import kill_all, processes_with
from yard_agent.app import build
from yard_agent.driver import DeviceProcess, DeviceUnreadable
from yard_agent.host import AgentService
from yard_agent.keeper_admin import connect
from yard_agent.settings import AgentSettings, NodeSettings
from yard_agent.simulated_driver import SimulatedDriver
from yard_bus.protocol import PartitionRef, Record, Session
from yard_domain.errors import Retryable
from yard_events.base import EventModel, unwrap, wrap
from yard_events.envelope import Envelope, from_headers
from yard_events.job_document import RunDocument
from yard_events.registry import NODES_EVENTS
from yard_events.types import (
    DevicesEmptied,
    NodeRegistered,
    NodeReport,
    PrepareTask,
    StartTask,
    StopTask,
    TaskExited,
    TaskReady,
    TaskStarted,
    TaskWork,
)
from yard_runtime.http import client_for, node_token
from yard_runtime.service import Runtime

WITHIN_SECONDS = 20
TaskFact = TaskReady | TaskStarted | TaskExited | DevicesEmptied
E = TypeVar("E", bound=EventModel)


class StandInDriver(SimulatedDriver):
    """Simulated devices of which the test says what holds them and whether they answer."""

    def __init__(self, template: str = "2xH100-80GB", node: str = "n1") -> None:
        super().__init__(template, node, lambda uuid: self.held.get(uuid, ()))
        self.held: dict[str, list[int]] = {}
        self.unreadable: str | None = None
        self.looks = 0

    def processes(self, uuid: str) -> list[DeviceProcess]:
        self.looks += 1
        if self.unreadable is not None:
            raise DeviceUnreadable(self.unreadable)
        return super().processes(uuid)


class AgentNodes:
    """One agent process's worth of nodes; `running` serves them until it is left, which is a crash of the agent."""

    def __init__(self, runtime: Runtime, folder: Path, database: str, **settings: Any) -> None:
        self.runtime = runtime
        self.folder = folder
        self.database = database
        self.mark = f"TEST_NODES={secrets.token_hex(8)}"
        self.address = f"unix:{folder}/output.sock"
        self.driver: StandInDriver | None = None
        self.told: list[EventModel] = []
        self.envelopes: list[Envelope] = []
        """Of what was told, in the same order."""
        self._sequences: dict[str, int] = {}
        self.doubles = 0
        self._offset: int | None = None
        self._changed = asyncio.Condition()
        self.nodes: list[dict[str, Any]] = settings.pop("nodes", [{"name": "n1", "devices": "4xH100-80GB"}])
        self._settings = {"report_seconds": 0.3, "empty_check_seconds": 0.02} | settings

    # --- serving -----------------------------------------------------------------------------------------------------

    def settings(self) -> AgentSettings:
        return AgentSettings(
            data_dir=self.folder / "agents",
            nodes=[NodeSettings(**node) for node in self.nodes],
            listen=self.address,
            advertise_url=self.address,
            **self._settings,
        )

    def change(self, **settings: Any) -> None:
        """For the next agent."""
        self._settings |= settings

    async def build(self) -> AgentService:
        given = self.driver
        return await build(self.settings(), self.runtime, None if given is None else lambda _node, _holders: given)

    @asynccontextmanager
    async def running(self, *, fails: bool = False) -> AsyncIterator["asyncio.Task[None]"]:
        """A new agent; returns once it is ready. Left by cancelling it: nothing is said goodbye to.

        Raises what it failed with, unless the test knows that it `fails`.
        """
        service = await self.build()
        ready = asyncio.Event()
        task = asyncio.create_task(service.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            yield task
        finally:
            waiting.cancel()
            failed = task.done()
            task.cancel()
            await asyncio.wait([task])
            if failed and not fails:
                task.result()

    @asynccontextmanager
    async def process(self) -> AsyncIterator["subprocess.Popen[bytes]"]:
        """The same as a process of its own, killed at the end if it still runs."""
        child = self.start_process()
        try:
            yield child
        finally:
            child.kill()
            await asyncio.to_thread(child.wait)

    def start_process(self) -> "subprocess.Popen[bytes]":
        settings = self.settings()
        environment = {
            "PATH": os.environ["PATH"],
            "YARD_DATABASE_URL": self.database,
            "YARD_INTERNAL_TOKEN": self.runtime.internal_token,
            "YARD_LISTEN": f"unix:{self.folder}/internal.sock",
            "YARD_POOL_SIZE": "3",
            "YARD_AGENT__DATA_DIR": str(settings.data_dir),
            "YARD_AGENT__NODES": f"[{','.join(node.model_dump_json(exclude_none=True) for node in settings.nodes)}]",
            "YARD_AGENT__LISTEN": settings.listen,
            "YARD_AGENT__ADVERTISE_URL": settings.advertise_url,
        } | {f"YARD_AGENT__{name.upper()}": str(value) for name, value in self._settings.items()}
        return subprocess.Popen(
            [sys.executable, "-m", "yard_allinone.process", "--target", "agent"],
            env=environment,
            stderr=subprocess.PIPE,
        )

    def node_folder(self, node: str = "n1") -> Path:
        return self.folder / "agents" / "nodes" / node

    def keeper_pid(self, node: str = "n1") -> int:
        with connect(self.node_folder(node) / "keeper.sock") as keeper:
            return keeper.pid

    def processes(self) -> set[int]:
        return processes_with(self.mark)

    def end_keepers(self) -> None:
        """Stop whatever runs and let the keepers leave."""
        for path in self.folder.glob("agents/nodes/*/keeper.sock"):
            with suppress(OSError), connect(path, timeout_seconds=WITHIN_SECONDS) as keeper:
                for allocation_id in keeper.running():
                    keeper.stop(allocation_id, 0)
                keeper.wait_emptied()
                keeper.leave_if_idle()
        kill_all(self.processes())

    # --- commands ----------------------------------------------------------------------------------------------------

    async def registration(self, node: str = "n1") -> NodeRegistered:
        """The newest."""
        await self.until(lambda: any(isinstance(e, NodeRegistered) and e.node == node for e in self.told))
        return [event for event in self.told if isinstance(event, NodeRegistered) and event.node == node][-1]

    async def work(self, *command: str, node: str = "n1", devices: Sequence[int] = (0,), **fields: Any) -> TaskWork:
        known = (await self.registration(node)).devices
        name, value = self.mark.split("=")
        run = {
            "command": list(command),
            "env": {name: value} | fields.pop("env", {}),
            "workdir": fields.pop("workdir", None),
        }
        defaults: dict[str, Any] = {
            "job_id": "job-1",
            "project_id": "team",
            "name": "train",
            "attempt": 1,
            "attempt_id": "job-1-a1",
            "task_rank": 0,
            "world_size": 1,
            "local_rank": 0,
            "local_world_size": 1,
            "device_uuids": [known[index].uuid for index in devices],
        }
        return TaskWork(run=RunDocument(**run), **(defaults | fields))

    async def start(
        self,
        allocation_id: str,
        *command: str,
        node: str = "n1",
        seq: int = 1,
        epoch: str | None = None,
        trace: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        rendezvous = {name: fields.pop(name) for name in ("master_addr", "master_port") if name in fields}
        work = await self.work(*command, node=node, **fields)
        about = await self._about(node, allocation_id, seq, epoch)
        await self.publish(StartTask(work=work, **about, **rendezvous), trace=trace)

    async def prepare(
        self,
        allocation_id: str,
        *command: str,
        node: str = "n1",
        seq: int = 1,
        trace: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        work = await self.work(*command, node=node, **fields)
        await self.publish(PrepareTask(work=work, **await self._about(node, allocation_id, seq, None)), trace=trace)

    async def stop(
        self,
        allocation_id: str,
        *,
        node: str = "n1",
        seq: int = 2,
        grace: float = 5.0,
        reason: str = "cancelled",
        trace: Mapping[str, str] | None = None,
    ) -> None:
        about = await self._about(node, allocation_id, seq, None)
        await self.publish(StopTask(grace_seconds=grace, reason=reason, **about), trace=trace)

    async def _about(self, node: str, allocation_id: str, seq: int, epoch: str | None) -> dict[str, Any]:
        current = epoch if epoch is not None else (await self.registration(node)).epoch
        return {"node": node, "epoch": current, "allocation_id": allocation_id, "command_seq": seq}

    async def publish(self, *events: EventModel, trace: Mapping[str, str] | None = None) -> None:
        """As placement's unit of work appends them; the bus may be away for a moment."""
        now = self.runtime.clock.now()
        envelopes = [
            wrap(
                e,
                event_id=self.runtime.ids.new("evt"),
                source="yard/placement",
                time=now,
                correlation_id="request",
                trace=trace,
            )
            for e in events
        ]
        async with asyncio.timeout(WITHIN_SECONDS):
            while True:
                try:
                    return await self.runtime.bus.publish(envelopes)
                except Retryable:
                    await self.runtime.clock.sleep(0.02)

    # --- facts -------------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Read what the nodes tell as consumers do: in order, doubles dropped by their sequence."""
        while True:
            try:
                async with self.runtime.bus.session(None, [NODES_EVENTS]) as session:
                    async for refs in session.assignments():
                        [ref] = refs
                        await self._read(session, ref)
            except Retryable:
                await self.runtime.clock.sleep(0.02)

    async def _read(self, session: Session, ref: PartitionRef) -> None:
        while True:
            records = await session.read(ref, self._offset, 500)
            self._offset = records[-1].offset + 1
            async with self._changed:
                for record in records:
                    self._take(record)
                self._changed.notify_all()

    def _take(self, record: Record) -> None:
        envelope = from_headers(record.ref.topic, record.key, record.headers, record.value)
        assert envelope.publish_seq is not None
        if envelope.publish_seq <= self._sequences.get(envelope.source, 0):
            self.doubles += 1
            return
        assert envelope.publish_seq == self._sequences.get(envelope.source, 0) + 1, "an event is missing"
        self._sequences[envelope.source] = envelope.publish_seq
        event = unwrap(envelope)
        assert event is not None
        self.told.append(event)
        self.envelopes.append(envelope)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that the nodes tell."""
        async with asyncio.timeout(WITHIN_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    def facts(self, allocation_id: str) -> list[TaskFact]:
        return [event for event in self.told if isinstance(event, TaskFact) and event.allocation_id == allocation_id]

    def envelope_of(self, fact: EventModel) -> Envelope:
        """How a fact that was told travelled."""
        return next(e for event, e in zip(self.told, self.envelopes, strict=True) if event is fact)

    def kinds(self, allocation_id: str) -> list[str]:
        return [type(fact).__name__ for fact in self.facts(allocation_id)]

    async def fact(self, kind: type[E], allocation_id: str) -> E:
        """Waits for it."""

        def found() -> E | None:
            return next((fact for fact in self.facts(allocation_id) if isinstance(fact, kind)), None)

        await self.until(found)
        fact = found()
        assert fact is not None
        return fact

    async def started(self, allocation_id: str) -> TaskStarted:
        return await self.fact(TaskStarted, allocation_id)

    async def ended(self, allocation_id: str) -> TaskExited:
        """Waits until its devices are empty, and checks that each fact was told once and in order."""
        await self.fact(DevicesEmptied, allocation_id)
        kinds = self.kinds(allocation_id)
        order = ["TaskReady", "TaskStarted", "TaskExited", "DevicesEmptied"]
        assert kinds == [kind for kind in order if kind in kinds]
        return await self.fact(TaskExited, allocation_id)

    async def report(self, node: str = "n1") -> NodeReport:
        """One that was made from now on."""
        before = len(self.told)

        def found() -> NodeReport | None:
            fresh = [e for e in self.told[before:] if isinstance(e, NodeReport) and e.node == node]
            return fresh[-1] if fresh else None

        # One may have been on its way already.
        await self.until(found)
        before = len(self.told)
        await self.until(found)
        report = found()
        assert report is not None
        return report

    def output(self, allocation_id: str, node: str = "n1") -> bytes:
        path = self.node_folder(node) / "output" / allocation_id
        return path.read_bytes() if path.exists() else b""

    def http(self, node: str = "n1", token: str | None = None) -> httpx.AsyncClient:
        given = token if token is not None else node_token(self.runtime.internal_token, node)
        return client_for(self.address, token=given, timeout_seconds=WITHIN_SECONDS)


def log_path(allocation_id: str, node: str = "n1") -> str:
    return f"/v1/nodes/{node}/allocations/{allocation_id}/log"


async def until(condition: Callable[[], Any]) -> None:
    """For what no event tells, such as the death of a process that is not ours."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def per_allocation(events: Sequence[EventModel]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if isinstance(event, TaskFact):
            found[event.allocation_id].append(type(event).__name__)
    return found
