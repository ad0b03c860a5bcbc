"""An installation for one benchmark: its own data folder, its own port, the same processes as `yard up`."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from yard_allinone.down import end_idle_keepers
from yard_allinone.installation import Installation
from yard_allinone.up import UpOptions, embedded_postgres, process_specs
from yard_runtime.supervisor import Supervisor
from yard_runtime.supervisor_events import SupervisorEvent, SupervisorEventKind

_READY_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A running installation. `died`: processes that ended by themselves meanwhile."""

    url: str
    token: str
    dsn: str
    pids: dict[str, int]
    died: list[str]
    postmaster: int

    def memory_mib(self) -> dict[str, float]:
        """Proportional memory (PSS: shared pages counted once) per process, in MiB; PostgreSQL left out."""
        found: dict[str, float] = {}
        for name, pid in self.pids.items():
            try:
                process = psutil.Process(pid)
                tree = [process, *process.children(recursive=True)]
                found[name] = sum(item.memory_full_info().pss for item in tree) / 2**20
            except psutil.NoSuchProcess:
                continue
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far per process, with PostgreSQL and the benchmark's own process."""
        used: dict[str, float] = {}
        for name, pid in {**self.pids, "postgres": self.postmaster, "client": os.getpid()}.items():
            process = psutil.Process(pid)
            tree = [process, *process.children(recursive=True)] if name == "postgres" else [process]
            used[name] = sum(sum(item.cpu_times()[:2]) for item in tree)
        return used


def _new_folder() -> Installation:
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    folder.chmod(0o711)
    installation = Installation(folder)
    installation.prepare()
    return installation


@asynccontextmanager
async def running_installation(options: UpOptions) -> AsyncIterator[Running]:
    """Start everything, wait until it is ready, and remove all of it afterwards."""
    installation = _new_folder()
    folder = installation.root
    postgres = embedded_postgres(installation)
    pids: dict[str, int] = {}
    died: list[str] = []

    def note(event: SupervisorEvent) -> None:
        if event.kind is SupervisorEventKind.STARTED and event.pid is not None:
            pids[event.name] = event.pid
        elif event.kind is SupervisorEventKind.DIED:
            died.append("\n".join([event.sentence, *event.log_lines]))

    try:
        dsn = await asyncio.to_thread(postgres.ensure_running)
        supervisor = Supervisor(process_specs(installation, options, dsn), note, run_dir=installation.run)
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            try:
                await supervisor.wait_ready(_READY_LIMIT_SECONDS)
                url = f"http://{options.http}"
                yield Running(url, installation.secret("admin.token"), dsn, pids, died, postgres.pid or 0)
            finally:
                await supervisor.stop()
    finally:
        end_idle_keepers(installation.agents)
        await asyncio.to_thread(postgres.stop, "immediate")
        shutil.rmtree(folder, ignore_errors=True)


def free_address() -> str:
    """A loopback address whose port is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
