"""`yard up`: PostgreSQL and a few supervised processes, which talk over the bus and HTTP as in production."""

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from yard_agent.nvml_driver import NvmlDriver, load_nvml
from yard_allinone.down import end_idle_keepers
from yard_allinone.installation import Installation, default_data_dir
from yard_domain.errors import InvalidField, Permanent, YardError
from yard_obs.logs import configure_logs
from yard_runtime.http import client_for
from yard_runtime.instance_lock import InstanceLock
from yard_runtime.stragglers import end_stragglers
from yard_runtime.supervised_process import ProcessSpec
from yard_runtime.supervisor import Supervisor, WatchSpec
from yard_runtime.supervisor_events import SupervisorEvent, SupervisorEventKind
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings

CONTROL = "control"
ENGINE = "engine"
AGENTS = "agents"

_READY_LIMIT_SECONDS = 120.0
_SOCKET_PATH_BYTES = 107
_PASSED_ON_ALL = ("YARD_KAFKA_", "OTEL_")
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "TZ",
    "LD_LIBRARY_PATH",
    "YARD_LOG_LEVEL",
    "YARD_METRICS_TOKEN",
)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """`nodes` simulated nodes with `devices` each; 0: one node with this machine's own GPUs.

    With brokers in `kafka` every service is a process of its own, `instances` times; instance n of the gateway listens
    n ports above `http`.
    """

    data_dir: Path | None = None
    http: str = "127.0.0.1:8080"
    nodes: int = 4
    devices: str = "8xH100-80GB"
    executor: str = "process"
    kafka: str | None = None
    instances: int = 1
    extra_env: tuple[tuple[str, str], ...] = ()


def main(options: UpOptions) -> int:
    """Run until Ctrl-C or SIGTERM. Prints for people; the services log into the data folder."""
    configure_logs(level="WARNING", json_lines=False)
    try:
        return asyncio.run(_main(options))
    except YardError as error:
        print(f"yard up: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidField) else 1
    except KeyboardInterrupt:
        return 130


async def _main(options: UpOptions) -> int:
    installation = Installation((options.data_dir or default_data_dir()).expanduser().resolve())
    _prepare(installation)
    with InstanceLock(installation.lock):
        for straggler in end_stragglers(installation.run):
            print(f"Ended a process of an earlier start: {straggler}")
        check_http_address(options.http)
        if options.nodes == 0:
            _check_gpus()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        postgres = None if "YARD_DATABASE_URL" in os.environ else embedded_postgres(installation)
        print(f"Starting gpuyard in {installation.root}", flush=True)
        dsn = await asyncio.to_thread(postgres.ensure_running) if postgres else os.environ["YARD_DATABASE_URL"]
        supervisor = Supervisor(
            process_specs(installation, options, dsn),
            _tell,
            run_dir=installation.run,
            watches=[_watch(postgres)] if postgres else [],
        )
        await _run(supervisor, installation, options, stop)
        if postgres is not None:
            await asyncio.to_thread(postgres.stop)
        left = end_idle_keepers(installation.agents)
        if left:
            print(f"{left} task(s) go on running; `make up` picks them up again, `make down` stops them.")
        return 0


async def _run(supervisor: Supervisor, installation: Installation, options: UpOptions, stop: asyncio.Event) -> None:
    async def announce() -> None:
        await supervisor.wait_ready(_READY_LIMIT_SECONDS)
        _welcome(installation, options)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        announcing = group.create_task(announce())
        stopping = group.create_task(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        announcing.cancel()
        stopping.cancel()
        print("Stopping.", flush=True)
        await supervisor.stop()


def _prepare(installation: Installation) -> None:
    longest = len(os.fsencode(str(installation.run / "control.sock")))
    if longest > _SOCKET_PATH_BYTES:
        raise Permanent(
            f"{installation.root}: the path is {longest - _SOCKET_PATH_BYTES} characters too long for the sockets in"
            " it; choose a shorter --data-dir"
        )
    try:
        installation.prepare()
    except OSError as error:
        raise Permanent(f"{installation.root} cannot be used as a data folder: {error.strerror}") from error


def _check_gpus() -> None:
    """A clear word before anything starts: DriverUnavailable says what is missing on a machine without usable GPUs."""
    NvmlDriver(load_nvml()).close()


def embedded_postgres(installation: Installation) -> EmbeddedPostgres:
    return EmbeddedPostgres(EmbeddedSettings(data_dir=installation.postgres))


def _watch(postgres: EmbeddedPostgres) -> WatchSpec:
    async def revive() -> None:
        await asyncio.to_thread(postgres.ensure_running)

    return WatchSpec("postgres", alive=postgres.is_alive, revive=revive, pid=lambda: postgres.pid)


def check_http_address(http: str) -> None:
    """A clear word before anything starts: malformed, or in use."""
    host, separator, port = http.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidField("--http", f"{http!r} is not HOST:PORT, such as 127.0.0.1:9000")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            hint = f'another one with `make up ARGS="--http {host}:{int(port) + 1}"`'
            raise InvalidField("--http", f"cannot listen on {http}: {error.strerror}; choose {hint}") from error


def process_specs(installation: Installation, options: UpOptions, dsn: str) -> list[ProcessSpec]:
    """Three processes: the engine, the agents of all nodes, and everything else."""
    internal = installation.secret("internal.token")
    admin = installation.secret("admin.token")
    base = {name: text for name, text in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_ALL)}
    base |= {"YARD_DATABASE_URL": dsn, "YARD_INTERNAL_TOKEN": internal, "PYTHONUNBUFFERED": "1"}
    base |= dict(options.extra_env)
    if options.kafka is not None:
        return _separate_specs(installation, options, base | {"YARD_KAFKA": options.kafka}, admin)
    upstreams = {name: installation.socket(CONTROL) for name in ("inventory", "admission", "billing", "audit")}
    upstreams["placement"] = installation.socket(ENGINE)
    control = _gateway_env(options.http, upstreams, admin)
    return [
        _spec(installation, ENGINE, "placement", base),
        _spec(installation, CONTROL, "gateway,inventory,admission,billing,audit,retention", base | control),
        _spec(installation, AGENTS, "agent", base | _agent_env(installation, options)),
    ]


def _separate_specs(
    installation: Installation, options: UpOptions, base: dict[str, str], admin: str
) -> list[ProcessSpec]:
    """As in production: one service a process, several instances of each; only the agents are one process."""
    numbers = range(options.instances)
    owners = ("inventory", "admission", "placement", "billing", "audit")
    upstreams = {name: ",".join(installation.socket(f"{name}-{n}") for n in numbers) for name in owners}
    host, _, port = options.http.rpartition(":")
    specs = [_spec(installation, f"{name}-{n}", name, base) for name in owners for n in numbers]
    for n in numbers:
        gateway = _gateway_env(f"{host}:{int(port) + n}", upstreams, admin)
        specs.append(_spec(installation, f"gateway-{n}", "gateway", base | gateway))
    agents = base | _agent_env(installation, options)
    del agents["YARD_DATABASE_URL"]
    return [*specs, _spec(installation, AGENTS, "agent", agents)]


def _gateway_env(http: str, upstreams: dict[str, str], admin: str) -> dict[str, str]:
    return {
        "YARD_GATEWAY__HTTP": http,
        "YARD_GATEWAY__UPSTREAMS": json.dumps(upstreams),
        "YARD_GATEWAY__ADMIN_TOKEN": admin,
    }


def _agent_env(installation: Installation, options: UpOptions) -> dict[str, str]:
    return {
        "YARD_AGENT__DATA_DIR": str(installation.agents),
        "YARD_AGENT__NODES": json.dumps(_nodes(options)),
        "YARD_AGENT__LISTEN": installation.socket("output"),
        "YARD_AGENT__ADVERTISE_URL": installation.socket("output"),
        "YARD_AGENT__EXECUTOR": options.executor,
    }


def _nodes(options: UpOptions) -> list[dict[str, object]]:
    if options.nodes == 0:
        return [{"name": socket.gethostname().lower().split(".")[0], "devices": "nvml"}]
    return [
        {"name": f"sim-{number}", "devices": options.devices, "cpus": 96, "memory_bytes": 1024 * 2**30}
        for number in range(1, options.nodes + 1)
    ]


def _spec(installation: Installation, name: str, target: str, env: dict[str, str]) -> ProcessSpec:
    listen = installation.socket(name)

    async def ready() -> bool:
        try:
            async with client_for(listen, timeout_seconds=2) as client:
                return (await client.get("/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    argv = (sys.executable, "-m", "yard_allinone.process", "--target", target)
    return ProcessSpec(name, argv, env | {"YARD_LISTEN": listen}, installation.logs / f"{name}.log", ready)


def _tell(event: SupervisorEvent) -> None:
    """What a person at the console should know; starts and orderly stops are not news."""
    kind = SupervisorEventKind
    if event.kind in (kind.STARTED, kind.READY, kind.STOPPING, kind.STOPPED):
        return
    print(event.sentence, file=sys.stderr, flush=True)
    for line in event.log_lines[-3:]:
        print(f"    {line}", file=sys.stderr, flush=True)


def _welcome(installation: Installation, options: UpOptions) -> None:
    url = f"http://{options.http}"
    written = installation.write_client_config(url, installation.secret("admin.token"))
    what = f"{options.nodes} simulated nodes with {options.devices}" if options.nodes else "this machine's GPUs"
    lines = [
        "",
        f"gpuyard is ready: {url}  ({what})",
        f"  token   {installation.secret_path('admin.token')}",
        f"  logs    {installation.logs}",
        f"  docs    {url}/docs",
        "",
        "Try, in a second shell (the commands are in .venv/bin):",
    ]
    if len(written) == 1:
        lines.append(f"  export YARD_CONFIG={installation.client_config}")
    lines += [
        "  yard run --gpus 2 --wait -- python3 -c 'import os; print(os.environ[\"CUDA_VISIBLE_DEVICES\"])'",
        "  yard submit examples/train.yaml",
        "  yard ps -a",
        "",
        "Ctrl-C stops the services; jobs, queues and history stay.",
    ]
    print("\n".join(lines), flush=True)
