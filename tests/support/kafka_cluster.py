"""A Kafka cluster of a test's own, whose brokers can be killed, frozen, stopped and started again.

Containers where this machine has an engine and the image, else JVMs from jars that Maven fetches.

    with start_kafka(brokers=3) as cluster:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster.kill(2)
        cluster.start(2)  # the same ports, the same data

Nodes are numbered from 1, which is also their id in Kafka's metadata. Every process is a broker and a controller at
once. Calls block; from a coroutine that has something to serve meanwhile use `asyncio.to_thread`.
"""

import base64
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from support.free_ports import free_ports
from support.kafka_answers import live_brokers
from support.kafka_containers import KafkaContainers, can_run_containers
from support.kafka_process import KafkaProcesses
from support.kafka_programs import KafkaUnavailable, kafka_programs

_START_LIMIT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 4000

# What differs from Kafka's defaults, so that what takes seconds or minutes in production can be seen in a test.
_QUICK = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}
# Few threads and small buffers: the machine's cores and memory are for what is tested.
_SMALL = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
}


class Broker(Protocol):
    """One running broker, whatever it runs in."""

    def is_alive(self) -> bool: ...
    def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def stop(self) -> None: ...


class Brokers(Protocol):
    """What starts brokers: JVMs of this machine, or containers."""

    def launch(self, properties: Path, log: Path, format_as: str | None) -> Broker: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Node:
    """What stays the same over the lives of one broker. `ports` has one port per listener's name."""

    number: int
    ports: Mapping[str, int]
    data: Path
    properties: Path
    log: Path


def start_kafka(
    brokers: int = 1,
    *,
    data_dir: Path | None = None,
    properties: Mapping[str, str] | None = None,
    listeners: Mapping[str, str] | None = None,
    jvm_options: Sequence[str] = (),
) -> "KafkaCluster":
    """A cluster that answers: one broker, or three that replicate (`min.insync.replicas` 2).

    `data_dir` gets a folder `broker-N` for each, and stays; without it the data goes with the cluster. `properties`
    add to or overrule the brokers' configuration. `listeners` maps further listeners' names to their protocols, for
    example `{"SECURE": "SASL_SSL"}`; each gets a free port, see `KafkaCluster.bootstrap_of`. `jvm_options` are for
    measurements, which want a larger heap and the optimising compiler.

    Raises `KafkaUnavailable` where there is no Java, no jars, or a broker does not start (with the end of its log).
    """
    cluster = KafkaCluster(
        brokers, data_dir=data_dir, properties=properties, listeners=listeners, jvm_options=jvm_options
    )
    try:
        cluster.start(*cluster.numbers)
    except BaseException:
        cluster.close()
        raise
    return cluster


class KafkaCluster:
    """See the module. Made by `start_kafka`; nothing runs before `start`."""

    def __init__(
        self,
        brokers: int,
        *,
        data_dir: Path | None,
        properties: Mapping[str, str] | None,
        listeners: Mapping[str, str] | None,
        jvm_options: Sequence[str],
    ) -> None:
        programs = None if can_run_containers() else kafka_programs()
        self._folder = Path(tempfile.mkdtemp(prefix="yard-kafka-"))
        self._starts: Brokers
        if programs is None:
            self._starts = KafkaContainers([self._folder, *([data_dir] if data_dir else [])], jvm_options)
        else:
            self._starts = KafkaProcesses(programs, jvm_options)
        self._cluster_id = _new_cluster_id()
        self._protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(listeners or {})}
        self._properties = dict(properties or {})
        self._nodes = self._make_nodes(brokers, data_dir or self._folder)
        self._running: dict[int, Broker] = {}
        self._frozen: set[int] = set()

    @property
    def numbers(self) -> tuple[int, ...]:
        """All brokers' numbers, dead ones included."""
        return tuple(self._nodes)

    @property
    def bootstrap(self) -> str:
        """`host:port` of all brokers, separated by commas, dead ones included."""
        return self.bootstrap_of("PLAINTEXT")

    def bootstrap_of(self, listener: str) -> str:
        """The same for another listener that `start_kafka` was given."""
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self._nodes.values())

    def address(self, number: int) -> str:
        """`host:port` of one broker."""
        return f"127.0.0.1:{self._nodes[number].ports['PLAINTEXT']}"

    def data_of(self, number: int) -> Path:
        """The folder of one broker's data."""
        return self._nodes[number].data

    def log_of(self, number: int) -> str:
        """The end of what a broker has logged in all its lives."""
        log = self._nodes[number].log
        return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""

    def alive(self) -> tuple[int, ...]:
        """The brokers whose process is there, frozen ones included."""
        return tuple(number for number, broker in self._running.items() if broker.is_alive())

    def start(self, *numbers: int) -> None:
        """Start brokers that are not running, on their ports and data; return when they and the others that run
        agree that they are live.

        Raises `KafkaUnavailable` with the end of the log of a broker that ended or was not ready in 60 s.
        """
        self.launch(*numbers)
        self.await_live(numbers)

    def launch(self, *numbers: int) -> None:
        """Start brokers and do not wait: for the disk-full cases, in which they may not become ready."""
        assert not set(numbers) & set(self.alive()), "it runs already"
        with ThreadPoolExecutor(max_workers=len(numbers)) as launching:
            for _ in launching.map(self._launch, numbers):
                pass  # raises what the launch has raised

    def _launch(self, number: int) -> None:
        node = self._nodes[number]
        empty = not (node.data / "meta.properties").exists()
        self._running[number] = self._starts.launch(node.properties, node.log, self._cluster_id if empty else None)

    def await_live(self, numbers: Iterable[int]) -> None:
        """Until these brokers are live in their own eyes and those of every other that runs and is not frozen."""
        wanted = frozenset(numbers)
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        waiting = set(self.alive()) - self._frozen | wanted
        while waiting:
            for number in wanted:
                if not self._running[number].is_alive():
                    raise KafkaUnavailable(f"Kafka broker {number} ended while it started:\n{self.log_of(number)}")
            waiting = {
                number for number in waiting if not wanted <= live_brokers(self._nodes[number].ports["PLAINTEXT"])
            }
            if waiting and time.monotonic() >= deadline:
                number = min(waiting)
                raise KafkaUnavailable(f"Kafka broker {number} is not ready in time:\n{self.log_of(number)}")
            if waiting:
                time.sleep(_POLL_SECONDS)  # a broker tells nobody that it is ready

    def kill(self, number: int) -> None:
        """SIGKILL, also to a frozen broker. Returns when it is gone."""
        self._running.pop(number).kill()
        self._frozen.discard(number)

    def freeze(self, number: int) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self._running[number].freeze()
        self._frozen.add(number)

    def thaw(self, number: int) -> None:
        """SIGCONT."""
        self._running[number].thaw()
        self._frozen.discard(number)

    def stop(self, number: int) -> None:
        """An orderly end: the broker hands over what it leads. Returns when it is gone."""
        assert number not in self._frozen, "a frozen broker hears nothing: thaw it first"
        self._running.pop(number).stop()

    def close(self) -> None:
        """Kill what runs and remove all files but those of a `data_dir` of the caller's."""
        for number in list(self._running):
            self.kill(number)
        self._starts.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Configuration

    def _make_nodes(self, brokers: int, data_dir: Path) -> dict[int, Node]:
        ports = iter(free_ports(brokers * len(self._protocols)))
        nodes: dict[int, Node] = {}
        for number in range(1, brokers + 1):
            nodes[number] = Node(
                number=number,
                ports={listener: next(ports) for listener in self._protocols},
                data=data_dir / f"broker-{number}",
                properties=self._folder / f"broker-{number}.properties",
                log=self._folder / f"broker-{number}.log",
            )
        for node in nodes.values():
            lines = [f"{name}={value}\n" for name, value in self._configuration(node, nodes).items()]
            node.properties.write_text("".join(lines))
        return nodes

    def _configuration(self, node: Node, nodes: Mapping[int, Node]) -> dict[str, str]:
        copies = str(min(len(nodes), 3))
        in_sync = "2" if len(nodes) >= 3 else "1"
        addresses = {listener: f"{listener}://127.0.0.1:{port}" for listener, port in node.ports.items()}
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.number),
            "controller.quorum.voters": ",".join(
                f"{each.number}@127.0.0.1:{each.ports['CONTROLLER']}" for each in nodes.values()
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(
                address for listener, address in addresses.items() if listener != "CONTROLLER"
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in self._protocols.items()),
            "log.dirs": str(node.data),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            **_QUICK,
            **_SMALL,
            **self._properties,
        }


def _new_cluster_id() -> str:
    """16 bytes in Kafka's base64, not beginning with a dash, which its tools would take for an option."""
    return base64.urlsafe_b64encode(b"k" + secrets.token_bytes(15)).decode().rstrip("=")


def prepare() -> None:
    """Fetch what is missing and let one broker live and end, whose classes the later ones start from.

    Raises `KafkaUnavailable`.
    """
    if can_run_containers():
        return
    programs = kafka_programs()
    if programs.class_archive.exists():
        return
    half = programs.class_archive.with_name(f"{secrets.token_hex(6)}.half")
    with start_kafka(jvm_options=(f"-XX:ArchiveClassesAtExit={half}",)) as cluster:
        cluster.stop(1)
    half.replace(programs.class_archive)


if __name__ == "__main__":
    try:
        prepare()
    except KafkaUnavailable as error:
        sys.exit(str(error))
