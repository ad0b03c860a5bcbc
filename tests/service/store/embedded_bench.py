"""Builds embedded servers in a temporary folder and ends them."""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings

STARTER = """
import pathlib, sys
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings
server = EmbeddedPostgres(EmbeddedSettings(pathlib.Path(sys.argv[1])))
server.ensure_running()
print(server.pid, flush=True)
sys.stdin.read()
"""


class EmbeddedBench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[EmbeddedPostgres] = []

    def server(self, name: str = "pg", **changes: Any) -> EmbeddedPostgres:
        """A server on `folder/name`, not started; several on the same name are several clients of one server."""
        settings = replace(EmbeddedSettings(self.folder / name), **changes)
        server = EmbeddedPostgres(settings)
        self._servers.append(server)
        return server

    def starter(self, name: str = "pg") -> subprocess.Popen[str]:
        """A process that starts the server, prints the postmaster's pid and waits."""
        return subprocess.Popen(
            [sys.executable, "-c", STARTER, str(self.folder / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        for server in self._servers:
            server.stop("immediate")


def server_user() -> pwd.struct_passwd:
    """Whom the server runs as when these tests start it."""
    return pwd.getpwnam("pgserver") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def as_server_user() -> dict[str, Any]:
    """Arguments of `subprocess.Popen` for a process that the server's signals reach."""
    if os.geteuid() != 0:
        return {}
    return {"user": server_user().pw_uid, "group": server_user().pw_gid, "extra_groups": [], "cwd": "/"}


def kill_and_wait(pid: int) -> None:
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def eventually(condition: Callable[[], bool], limit_seconds: float = 20) -> None:
    """For the state of processes that are not ours, which has no event."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


async def query(dsn: str, sql: str) -> Any:
    """The first value of the first row."""
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()
