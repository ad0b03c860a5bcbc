"""The stack's commands and variables do what they are for: its broker, its topics, its services, its two nodes.

Containers need images from a registry; the processes in them do not. What is tested here is everything but the walls.
"""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from support.compose_processes import ComposeProcesses
from support.compose_stack import SECRETS, environment, of_gpuyard
from support.installation import until
from support.otlp_receiver import OtlpReceiver, otlp_receiver
from support.prometheus_server import prometheus_server
from yard_allinone.down import end_idle_keepers

FULL_NODE = 8


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


def _run(dsn: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def stack(
    postgres_server: str, receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComposeProcesses]:
    name = f"c{secrets.token_hex(6)}"
    head, _, query = postgres_server.partition("?")
    dsn = f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    _run(postgres_server, f"CREATE DATABASE {name} STRATEGY file_copy")
    made = ComposeProcesses(tmp_path_factory.mktemp("stack"), dsn, receiver.grpc)
    try:
        made.start_kafka()
        applied = until(lambda: _ended_well(made), 60, "topics are made")
        assert "yard.jobs.requests.v1" in applied
        for container in of_gpuyard():
            made.start(container)
        for container in of_gpuyard():
            made.await_healthy(container)
        yield made
    finally:
        made.close()
        end_idle_keepers(made.agents)
        _run(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


def _ended_well(made: ComposeProcesses) -> str:
    """Compose starts the container again while it fails, which it does until the broker answers."""
    done = made.run("topics")
    return done.stdout if done.returncode == 0 else ""


@pytest.fixture
def client(stack: ComposeProcesses) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {SECRETS['YARD_ADMIN_TOKEN']}"}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=40) as client:
        yield client


def _ended(client: httpx.Client, job_id: str) -> dict[str, object]:
    return until(
        lambda: found if (found := client.get(f"/v1/jobs/{job_id}").json()).get("ended_at") else None, 30, "job ended"
    )


def test_every_variable_of_the_broker_becomes_a_setting_of_it(tmp_path: Path) -> None:
    made = ComposeProcesses(tmp_path, "postgresql://nowhere/none", "http://127.0.0.1:1")
    lines = made.configure_kafka().read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    wanted = {
        variable.removeprefix("KAFKA_").lower().replace("_", "."): value
        for variable, value in made.kafka_environment().items()
        if variable.startswith("KAFKA_") and variable != "KAFKA_HEAP_OPTS"
    }
    assert settings == wanted
    assert settings["auto.create.topics.enable"] == "false"
    assert f"cluster.id={SECRETS['KAFKA_CLUSTER_ID']}" in (tmp_path / "kafka-data/meta.properties").read_text()


def test_both_nodes_are_there(client: httpx.Client) -> None:
    nodes = until(
        lambda: found if len(found := client.get("/v1/nodes").json()["items"]) == 2 else None, 20, "two nodes"
    )
    assert {node["name"] for node in nodes} == {"sim-1", "sim-2"}
    assert all(len(node["devices"]) == FULL_NODE for node in nodes)


async def test_a_gang_over_both_agents_runs_and_its_output_is_read(
    client: httpx.Client, receiver: OtlpReceiver
) -> None:
    run = {"command": ["python3", "-c", "import os; print('rank', os.environ['RANK'], os.environ['YARD_NODE'])"]}
    body = {"name": "both", "tasks": {"count": 2, "gpus": FULL_NODE}, "run": run}
    answer = client.post("/v1/jobs", json=body, headers={"idempotency-key": "both"})
    assert answer.status_code == 201, answer.text
    job = await asyncio.to_thread(_ended, client, answer.json()["id"])
    assert job["state"] == "succeeded", job
    said = {client.get(f"/v1/jobs/{job['id']}/logs", params={"task": rank}).text.strip() for rank in (0, 1)}
    assert {line.split()[2] for line in said} == {"sim-1", "sim-2"}
    services = {"gateway", "admission", "placement", "agent", "inventory", "billing"}

    def all_told(received: OtlpReceiver) -> bool:
        return {f"gpuyard-{service}" for service in services} <= {span.service for span in received.spans}

    await receiver.until(all_told)


def test_the_owners_answer_through_the_gateway(client: httpx.Client) -> None:
    for path in ("/v1/queues", "/v1/usage", "/v1/audit"):
        answer = client.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
    assert client.get("/v1/audit").json()["findings"] == []


async def test_prometheus_scrapes_everything_with_its_own_token(stack: ComposeProcesses, tmp_path: Path) -> None:
    addresses = [stack.address(name) for name in of_gpuyard()]
    token = environment("prometheus")["YARD_METRICS_TOKEN"]
    async with prometheus_server(tmp_path, addresses, token=token) as prometheus:
        up = await prometheus.until("up == 1", lambda found: len(found) == len(addresses))
        assert {sample.labels["instance"] for sample in up} == set(addresses)
        active = await prometheus.until("yard_service_active == 1", lambda found: len(found) >= 5)
    assert {sample.labels["service"] for sample in active} == {
        "gateway",
        "inventory",
        "admission",
        "placement",
        "billing",
    }


def test_the_metrics_token_opens_nothing_else(stack: ComposeProcesses) -> None:
    headers = {"authorization": f"Bearer {SECRETS['YARD_METRICS_TOKEN']}"}
    assert httpx.get(f"http://{stack.address('billing')}/metrics", headers=headers).status_code == 200
    assert httpx.get(f"http://{stack.address('billing')}/internal/billing/usage", headers=headers).status_code == 401
    assert httpx.get(f"{stack.url}/v1/jobs", headers=headers).status_code == 401


def test_every_process_ends_at_sigterm(stack: ComposeProcesses) -> None:
    for process in stack.processes.values():
        process.terminate()
    for name, process in stack.processes.items():
        assert process.wait(15) == 0, f"{name}: {stack.log(name)}"
