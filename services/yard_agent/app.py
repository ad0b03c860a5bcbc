"""The agent's composition root."""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path

import structlog

from yard_agent.driver import GpuDriver
from yard_agent.executor import Executor, ProcessExecutor
from yard_agent.host import AgentService
from yard_agent.journal import Journal
from yard_agent.keeper_client import KeeperClient
from yard_agent.node_agent import NodeAgent
from yard_agent.nvml_driver import NvmlDriver, load_nvml
from yard_agent.registration import NodeIdentity, read_boot_id
from yard_agent.settings import AgentSettings, NodeSettings
from yard_agent.simulated_driver import SimulatedDriver
from yard_agent.simulated_executor import SimulatedExecutor
from yard_agent.task_files import TaskFiles
from yard_runtime.service import Runtime

_log = structlog.get_logger("yard.agent")


DriverFor = Callable[[NodeSettings, Mapping[str, Collection[int]]], GpuDriver]
"""The driver of a node, from its settings and the pids that hold its devices if they are simulated."""


async def build(settings: AgentSettings, runtime: Runtime, driver_for: DriverFor | None = None) -> AgentService:
    """All nodes of this process. Opening a journal that another agent holds raises JournalInUse."""
    boot_id = read_boot_id()
    nodes = (_node(settings, node, runtime, boot_id, driver_for or _driver) for node in settings.nodes)
    with ExitStack() as opened:
        agents = [opened.enter_context(closing(node)) for node in nodes]
        opened.pop_all()  # all or none: whoever builds again after an error must find the journals free
    return AgentService(settings, agents, runtime)


def _node(
    settings: AgentSettings, node: NodeSettings, runtime: Runtime, boot_id: str, driver_for: DriverFor
) -> NodeAgent:
    folder = settings.data_dir / "nodes" / node.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    holders: dict[str, set[int]] = {}
    driver = driver_for(node, holders)
    journal = Journal(folder / "journal.sqlite", new_journal_id=runtime.ids.new("jnl"))
    return NodeAgent(
        settings=settings,
        identity=NodeIdentity(settings, node, boot_id, journal.journal_id, version("gpuyard")),
        folder=folder,
        journal=journal,
        driver=driver,
        executor=_executor(settings, folder, runtime, node.name),
        bus=runtime.bus,
        clock=runtime.clock,
        ids=runtime.ids,
        environment=dict(os.environ),
        holders=holders,
    )


def _driver(node: NodeSettings, holders: Mapping[str, Collection[int]]) -> GpuDriver:
    if not node.simulated:
        return NvmlDriver(load_nvml())
    return SimulatedDriver(node.devices, node.name, lambda uuid: sorted(holders.get(uuid, ())))


def _executor(settings: AgentSettings, folder: Path, runtime: Runtime, node: str) -> Executor:
    if settings.executor == "simulated":
        return SimulatedExecutor(runtime.clock, settings.simulated_run_seconds)
    keeper = KeeperClient(
        socket_path=folder / "keeper.sock",
        log_path=folder / "keeper.log",
        stderr_path=folder / "keeper.err",
        on_lost=lambda why: _log.warning("keeper connection lost", node=node, why=why),
        python=sys.executable,
    )
    return ProcessExecutor(keeper, TaskFiles(folder))
