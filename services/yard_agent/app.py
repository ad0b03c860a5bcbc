"""The agent's composition root."""

import os
import sys
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
from yard_runtime.service import Runtime

_log = structlog.get_logger("yard.agent")


async def build(settings: AgentSettings, runtime: Runtime) -> AgentService:
    """All nodes of this process. Opening a journal that another agent holds raises JournalInUse."""
    boot_id = read_boot_id()
    agents = [_node(settings, node, runtime, boot_id) for node in settings.nodes]
    return AgentService(settings, agents, runtime)


def _node(settings: AgentSettings, node: NodeSettings, runtime: Runtime, boot_id: str) -> NodeAgent:
    folder = settings.data_dir / "nodes" / node.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = Journal(folder / "journal.sqlite", new_journal_id=runtime.ids.new("jnl"))
    identity = NodeIdentity(settings, node, boot_id, journal.journal_id, version("gpuyard"))
    held: dict[str, set[int]] = {}
    driver = _driver(node, held)
    agent = NodeAgent(
        settings=settings,
        node=node,
        identity=identity,
        folder=folder,
        journal=journal,
        driver=driver,
        executor=_executor(settings, folder, runtime, node.name),
        bus=runtime.bus,
        clock=runtime.clock,
        ids=runtime.ids,
        environment=dict(os.environ),
    )
    agent.facts.pids = held
    return agent


def _driver(node: NodeSettings, held: dict[str, set[int]]) -> GpuDriver:
    if not node.simulated:
        return NvmlDriver(load_nvml())
    return SimulatedDriver(node.devices, node.name, lambda uuid: sorted(held.get(uuid, ())))


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
    return ProcessExecutor(keeper)
