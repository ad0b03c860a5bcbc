"""One broker as a JVM that ends with the process that started it."""

import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.kafka_programs import KafkaPrograms, KafkaUnavailable

_STOP_LIMIT_SECONDS = 30.0
_FORMAT_LIMIT_SECONDS = 60.0


class KafkaProcesses:
    """Starts brokers as JVMs. The kernel kills them when the thread that forked them ends, and with it this process.

    That is why one thread, kept until `close`, does all the forking: a thread of a pool would take its brokers along.
    """

    def __init__(self, programs: KafkaPrograms, jvm_options: Sequence[str] = ()) -> None:
        self._programs = programs
        self._jvm_options = tuple(jvm_options)
        self._forking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-forking")

    def launch(self, properties: Path, log: Path, format_as: str | None) -> "KafkaProcess":
        """Start a broker; it is not ready yet. `format_as` is the cluster's id where the data folder is empty.

        Raises `KafkaUnavailable` with what the formatting tool said.
        """
        if format_as is not None:
            self._format(properties, format_as)
        command = self._programs.command("kafka.Kafka", [str(properties)], self._jvm_options)
        return KafkaProcess(self._forking.submit(_fork, command, log).result())

    def _format(self, properties: Path, cluster_id: str) -> None:
        arguments = ["format", "--cluster-id", cluster_id, "--config", str(properties)]
        command = self._programs.command("kafka.tools.StorageTool", arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_LIMIT_SECONDS)
        if done.returncode != 0:
            raise KafkaUnavailable(
                f"Kafka could not format its data folder:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )

    def close(self) -> None:
        """End the forking thread, and whatever it has forked and nobody has ended."""
        self._forking.shutdown()


def _fork(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the terminal is for the tests, which end their brokers
        )


class KafkaProcess:
    """One running broker."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        """SIGKILL; frozen processes die as well. Returns when it is gone."""
        self._child.kill()
        self._child.wait()

    def freeze(self) -> None:
        """SIGSTOP. Returns when every thread of it stands still."""
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: the broker hands over its partitions first. Killed where that takes longer than 30 s."""
        self._child.terminate()
        try:
            self._child.wait(_STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
