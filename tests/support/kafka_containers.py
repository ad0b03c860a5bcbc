"""Brokers as containers, where this machine has a container engine and the image is there or can be had.

They run on the host's network with the host's files, on the same configuration as the JVMs: only what starts them
differs. testcontainers' reaper removes them when this process dies.
"""

import functools
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from support.kafka_programs import KafkaUnavailable

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from testcontainers.core.container import DockerContainer

IMAGE = "apache/kafka:4.1.1"  # the version of tests/kafka/pom.xml
_ANSWER_LIMIT_SECONDS = 3
_PULL_LIMIT_SECONDS = 120.0
_STOP_LIMIT_SECONDS = 30
_LOG4J = Path(__file__).parents[1] / "kafka" / "log4j2.properties"


@functools.cache  # the answer holds for a run of the tests, and a registry that is not there is not asked twice
def can_run_containers() -> bool:
    """Whether a container engine on this machine answers at once and has the images, or pulls them in two minutes."""
    import docker
    from docker.errors import DockerException
    from testcontainers.core.config import testcontainers_config

    if not os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
        return False  # on another machine, a broker cannot be reached over loopback
    images = [IMAGE] if testcontainers_config.ryuk_disabled else [IMAGE, testcontainers_config.ryuk_image]
    try:
        engine = docker.from_env(timeout=_ANSWER_LIMIT_SECONDS)
        try:
            if any("rootless" in option for option in engine.info().get("SecurityOptions") or []):
                return False  # its host network is not the host's
            return all(_has_or_pulls(engine, each) for each in images)
        finally:
            engine.close()
    except (DockerException, OSError):
        return False


def _has_or_pulls(engine: "DockerClient", image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        engine.images.get(image)
    except ImageNotFound:
        engine.images.get_registry_data(
            image
        )  # raises within the answer limit where there is no such registry or image
    else:
        return True
    deadline = time.monotonic() + _PULL_LIMIT_SECONDS
    for _ in engine.api.pull(image, stream=True):
        if time.monotonic() >= deadline:
            return False
    engine.images.get(image)
    return True


class KafkaContainers:
    """Starts brokers as containers. `folders` are seen inside under the paths that they have outside."""

    def __init__(self, folders: Sequence[Path], jvm_options: Sequence[str] = ()) -> None:
        self._folders = folders
        self._jvm_options = jvm_options

    def launch(self, properties: Path, log: Path, format_as: str | None) -> "KafkaContainer":
        """Start a broker; it is not ready yet. `format_as` is the cluster's id where the data folder is empty."""
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        config, output = shlex.quote(str(properties)), shlex.quote(str(log))
        script = f"exec >>{output} 2>&1; "
        if format_as is not None:
            script += f"/opt/kafka/bin/kafka-storage.sh format --cluster-id {format_as} --config {config} && "
        script += f"exec /opt/kafka/bin/kafka-server-start.sh {config}"
        container = DockerContainer(IMAGE).with_command(["-c", script])
        container = container.with_kwargs(entrypoint="sh", network_mode="host", user=f"{os.getuid()}:{os.getgid()}")
        container = container.with_envs(
            KAFKA_HEAP_OPTS="-Xms64m -Xmx256m",
            KAFKA_JVM_PERFORMANCE_OPTS=" ".join(("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self._jvm_options)),
            KAFKA_LOG4J_OPTS=f"-Dlog4j2.configurationFile={_LOG4J}",
            EXTRA_ARGS="-name kafkaServer",  # without its default: a log of the collector, in a folder of root's
            LOG_DIR=str(log.parent),
        )
        container = container.with_volume_mapping(str(_LOG4J), str(_LOG4J), "ro")
        for folder in self._folders:
            container = container.with_volume_mapping(str(folder), str(folder), "rw")
        try:
            return KafkaContainer(container.start())
        except DockerException as error:
            raise KafkaUnavailable(f"The container of a Kafka broker did not start: {error}") from error

    def close(self) -> None:
        """Nothing is kept between brokers."""


class KafkaContainer:
    """One running broker."""

    def __init__(self, container: "DockerContainer") -> None:
        self._container = container

    @property
    def _engine_view(self) -> "Container":
        return self._container.get_wrapped_container()

    def is_alive(self) -> bool:
        view = self._engine_view
        view.reload()
        return view.status in ("created", "running", "paused")

    def kill(self) -> None:
        """SIGKILL; frozen processes die as well. Returns when it is gone."""
        self._container.stop(force=True)

    def freeze(self) -> None:
        """Stop every process of it. Returns when they stand still."""
        self._engine_view.pause()

    def thaw(self) -> None:
        self._engine_view.unpause()

    def stop(self) -> None:
        """SIGTERM: the broker hands over its partitions first. Killed where that takes longer than 30 s."""
        self._engine_view.stop(timeout=_STOP_LIMIT_SECONDS)
        self._container.stop(force=True)
