"""`yard down`: end everything of an installation, tasks included."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from yard_agent.keeper_admin import connect, keeper_sockets
from yard_allinone.installation import Installation, default_data_dir
from yard_domain.errors import Retryable, YardError
from yard_runtime.instance_lock import InstanceLock, InstanceRunning
from yard_runtime.stragglers import end_stragglers
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings

_SUPERVISOR_LIMIT_SECONDS = 60.0


def main(data_dir: Path | None, grace_seconds: float) -> int:
    """0 when nothing of the installation runs any more."""
    installation = Installation((data_dir or default_data_dir()).expanduser().resolve())
    if not installation.run.is_dir():
        print(f"There is no gpuyard in {installation.root}.")
        return 0
    try:
        _end_supervisor(installation)
        with InstanceLock(installation.lock):
            end_stragglers(installation.run)
            stopped = stop_tasks(installation.agents, grace_seconds)
            if installation.postgres.is_dir():
                EmbeddedPostgres(EmbeddedSettings(data_dir=installation.postgres)).stop()
    except YardError as error:
        print(f"yard down: {error}", file=sys.stderr)
        return 1
    print(f"gpuyard in {installation.root} is stopped" + (f", with {stopped} task(s)." if stopped else "."))
    return 0


def _end_supervisor(installation: Installation) -> None:
    """Ask the `yard up` that holds the folder to stop, and wait until it has let go of it."""
    asked = False
    deadline = time.monotonic() + _SUPERVISOR_LIMIT_SECONDS
    while True:
        try:
            with InstanceLock(installation.lock):
                return
        except InstanceRunning as running:
            if running.pid is None or time.monotonic() > deadline:
                raise
            if not asked:
                with suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGTERM)
                asked = True
            time.sleep(0.05)


def end_idle_keepers(agents: Path) -> int:
    """Let keepers without tasks leave; returns how many tasks the others still keep."""
    running = 0
    for path in keeper_sockets(agents):
        with suppress(OSError), connect(path) as keeper:
            if not keeper.leave_if_idle():
                running += len(keeper.running())
    return running


def stop_tasks(agents: Path, grace_seconds: float) -> int:
    """Stop every running task; their ends stay in the keepers' logs, so the next `yard up` reports them."""
    stopped = 0
    for path in keeper_sockets(agents):
        try:
            with connect(path, timeout_seconds=grace_seconds + 30) as keeper:
                for allocation_id in keeper.running():
                    keeper.stop(allocation_id, grace_seconds)
                    stopped += 1
                keeper.wait_emptied()
                keeper.leave_if_idle()
        except (FileNotFoundError, ConnectionRefusedError):
            continue  # no keeper there
        except OSError as error:
            raise Retryable(f"the keeper of {path.parent.name} did not stop its tasks in time: {error}") from error
    return stopped
