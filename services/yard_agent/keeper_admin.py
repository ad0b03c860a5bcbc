"""Asking keepers from outside of an agent: is anything running, leave if not, stop what runs. Blocking calls."""

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yard_agent.keeper_client import KeeperUnavailable, socket_address

_TIMEOUT_SECONDS = 5.0


class KeeperConnection:
    """One connection to a keeper that is running; never starts one. Calls raise KeeperUnavailable when the keeper
    cannot do it now, OSError when it is gone or does not answer in time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.pid = int(self._receive()["keeper"])

    def running(self) -> list[str]:
        """Allocations whose processes are not all gone."""
        return [task["allocation_id"] for task in self._ask(op="list")["tasks"] if not task["emptied"]]

    def leave_if_idle(self) -> bool:
        return bool(self._ask(op="shutdown")["closing"])

    def stop(self, allocation_id: str, grace_seconds: float) -> None:
        self._ask(op="stop", id=allocation_id, grace_seconds=grace_seconds)

    def wait_emptied(self) -> None:
        """Returns when nothing runs; pushed changes wake it."""
        while self.running():
            self._receive()

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._stream.write(json.dumps({**request, "n": 1}).encode() + b"\n")
        self._stream.flush()
        while "n" not in (message := self._receive()):
            continue
        if "error" in message:
            raise KeeperUnavailable(f"keeper {self.pid}: {message['error']}")
        return message

    def _receive(self) -> dict[str, Any]:
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the keeper is gone")
        return json.loads(line)


@contextmanager
def connect(path: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> Generator[KeeperConnection, None, None]:
    """Raises OSError when no keeper listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(timeout_seconds)
        with socket_address(path) as address:
            raw.connect(address)
        with raw.makefile("rwb") as stream:
            yield KeeperConnection(stream)


def keeper_sockets(agent_data_dir: Path) -> list[Path]:
    """The sockets of all nodes that ever had a keeper under this folder."""
    return sorted(agent_data_dir.glob("nodes/*/keeper.sock"))
