"""The containers of the compose stack as processes of this machine: their commands and variables, other addresses."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from support.compose_stack import COMPOSE, containers, environment, of_gpuyard
from support.free_ports import free_ports
from support.installation import until
from support.kafka_process import KafkaProcess, KafkaProcesses
from support.kafka_programs import kafka_programs

_BIN = Path(sys.executable).parent
_INTERNAL, _OUTPUT, _PUBLIC = 7000, 7010, 8080
_AGENTS = ("agent-1", "agent-2")
_START_SECONDS = 60
_STOP_SECONDS = 20


class ComposeProcesses:
    """Start Kafka, then the topics, then everything of ours; `close` ends all."""

    def __init__(self, folder: Path, database_url: str, otlp_grpc: str) -> None:
        self._folder = folder
        self._database_url = database_url
        self._otlp_grpc = otlp_grpc
        names = sorted(of_gpuyard())
        wanted = [(name, _INTERNAL) for name in names] + [(name, _OUTPUT) for name in _AGENTS]
        wanted += [("gateway", _PUBLIC), ("kafka", 9092), ("kafka", 9093)]
        self._ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kafka: KafkaProcess | None = None
        self._opened = ExitStack()

    def address(self, name: str, port: int = _INTERNAL) -> str:
        return f"127.0.0.1:{self._ports[name, port]}"

    @property
    def url(self) -> str:
        return f"http://{self.address('gateway', _PUBLIC)}"

    @property
    def agents(self) -> Path:
        """The agents' data: one for both, in which each has its node."""
        return self._folder / "agents"

    # --- kafka -------------------------------------------------------------------------------------------------------

    def kafka_environment(self) -> dict[str, str]:
        """The container's variables, at this machine's ports and in this test's folder."""
        own = self._moved("kafka", environment("kafka"))
        own |= {"KAFKA_LOG_DIRS": str(self._folder / "kafka-data"), "LOG_DIR": str(self._folder)}
        own["KAFKA_CONTROLLER_QUORUM_VOTERS"] = own["KAFKA_CONTROLLER_QUORUM_VOTERS"].replace("localhost", "127.0.0.1")
        return own

    def configure_kafka(self) -> Path:
        """Apache's image turns variables into a configuration, and formats an empty disk, with this class."""
        programs = kafka_programs()
        defaults, mounted, final = (self._folder / name for name in ("default", "mounted", "final"))
        for folder in (defaults, mounted, final):
            folder.mkdir()
        for name in ("log4j2.yaml", "tools-log4j2.yaml"):
            (defaults / name).write_text(_LOGGING)
        arguments = ["setup", f"--default-configs-dir={defaults}", f"--mounted-configs-dir={mounted}"]
        command = programs.command("kafka.docker.KafkaDockerWrapper", [*arguments, f"--final-configs-dir={final}"])
        made = subprocess.run(command, env=self.kafka_environment(), capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stdout + made.stderr
        return final / "server.properties"

    def start_kafka(self) -> None:
        starts = KafkaProcesses(kafka_programs())
        self._opened.callback(starts.close)
        self._kafka = starts.launch(self.configure_kafka(), self._folder / "kafka.log", format_as=None)

    # --- ours --------------------------------------------------------------------------------------------------------

    def environment(self, name: str) -> dict[str, str]:
        """The container's variables, pointed at this machine."""
        own = self._moved(name, environment(name))
        if "YARD_DATABASE_URL" in own:
            own["YARD_DATABASE_URL"] = self._database_url
        if "OTEL_EXPORTER_OTLP_ENDPOINT" in own:
            own |= {"OTEL_EXPORTER_OTLP_ENDPOINT": self._otlp_grpc, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        if "YARD_AGENT__DATA_DIR" in own:
            own |= {"YARD_AGENT__DATA_DIR": str(self.agents), "YARD_AGENT__ADVERTISE_ADDR": "127.0.0.1"}
        return own | {"PATH": f"{_BIN}:/usr/bin:/bin", "HOME": str(self._folder), "LANG": "C.UTF-8"}

    def _moved(self, name: str, own: Mapping[str, str]) -> dict[str, str]:
        """Addresses of containers become addresses here."""
        moved: dict[str, str] = {}
        for variable, value in own.items():
            for (container, port), here in self._ports.items():
                hosts = [container, f"{container}.nodes"]
                if container == name:
                    hosts += ["0.0.0.0", "localhost"]
                for host in hosts:
                    for before in ("", "//", '"', "@"):
                        if f"{before}{host}:{port}" in value and (before or value.startswith(host)):
                            value = value.replace(f"{before}{host}:{port}", f"{before}127.0.0.1:{here}")
            moved[variable] = value
        return moved

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """A container that ends."""
        return subprocess.run(
            [str(_BIN / "yard"), *containers()[name]["command"]],
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(_BIN / "yard"), *containers()[name]["command"]],
                env=self.environment(name),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def healthy(self, name: str) -> bool:
        """What the engine would say, by the image's health check."""
        command = [sys.executable, "-I", "-S", str(COMPOSE / "healthcheck.py")]
        done = subprocess.run(command, env={"YARD_LISTEN": self.address(name)}, capture_output=True, timeout=10)
        return done.returncode == 0

    def await_healthy(self, name: str) -> None:
        def well() -> bool:
            assert self.processes[name].poll() is None, f"{name} ended:\n{self.log(name)}"
            return self.healthy(name)

        until(well, _START_SECONDS, f"{name} is healthy:\n{self.log(name)}")

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._kafka is not None:
            self._kafka.kill()
        self._opened.close()


_LOGGING = """\
Configuration:
  Properties: {Property: []}
  Appenders: {Console: {name: STDOUT}}
  Loggers: {Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}, Logger: []}
"""
