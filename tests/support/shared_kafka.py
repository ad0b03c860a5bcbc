"""One Kafka for all tests of a run that only use it, started when the first of them asks.

The process that outlives all workers owns it: the controller under pytest-xdist, else the one process there is. It
listens on a Unix socket; who connects is told the address, or why there is none.
"""

import os
import shutil
import socket
import socketserver
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from support.kafka_cluster import KafkaCluster, start_kafka
from support.kafka_programs import KafkaUnavailable

_ASK_LIMIT_SECONDS = 900.0  # the first to ask may have to wait for a download
_ENVIRONMENT = "YARD_TEST_KAFKA"
_HERE, _NONE = "here ", "none "


class SharedKafka:
    """A pytest plugin. In a worker it only knows where to ask."""

    def __init__(self, config: pytest.Config) -> None:
        self._given = os.environ.get(_ENVIRONMENT)
        self._owner: _Owner | None = None
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        if worker is None:
            self._owner = _Owner()
            self._socket = str(self._owner.socket)
        else:
            self._socket = str(worker["kafka_socket"])

    def bootstrap(self) -> str:
        """The address; starts the broker where this is the first call of the run. Raises `KafkaUnavailable`."""
        if self._given:
            return self._given
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ASK_LIMIT_SECONDS)
            connection.connect(self._socket)
            with connection.makefile("r", encoding="utf-8") as answer:
                said = answer.read()
        if not said.startswith(_HERE):
            raise KafkaUnavailable(said.removeprefix(_NONE) or "the process that owns the shared Kafka is gone")
        return said.removeprefix(_HERE)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """pytest-xdist: tell a worker where to ask."""
        node.workerinput["kafka_socket"] = self._socket

    def pytest_unconfigure(self) -> None:
        """After the last worker."""
        if self._owner is not None:
            self._owner.close()


class _Owner:
    """Answers at a socket in a folder of its own, each caller in a thread; the first starts the broker."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="yard-kafka-"))
        self._lock = threading.Lock()
        self._cluster: KafkaCluster | None = None
        self._trouble: str | None = None
        self.socket = self._folder / "s"
        owner = self

        class Answer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(owner.answer().encode())

        self._server = socketserver.ThreadingUnixStreamServer(str(self.socket), Answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="kafka-owner", daemon=True
        )
        self._thread.start()

    def answer(self) -> str:
        with self._lock:
            if self._cluster is None and self._trouble is None:
                try:
                    self._cluster = start_kafka()
                except KafkaUnavailable as error:
                    self._trouble = str(error)  # for all later tests of the run as well, each of which fails with it
            return f"{_NONE}{self._trouble}" if self._cluster is None else f"{_HERE}{self._cluster.bootstrap}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()  # waits for the handlers
        if self._cluster is not None:
            self._cluster.close()
        shutil.rmtree(self._folder, ignore_errors=True)
