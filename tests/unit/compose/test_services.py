"""The containers of our own image: their commands, variables and addresses against the code that reads them."""

import json
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
from pydantic_settings import BaseSettings

from support.compose_stack import containers, environment, host_of, named, of_gpuyard, port_of, together
from yard_admission.settings import AdmissionSettings
from yard_agent.settings import AgentSettings
from yard_allinone.installation import Installation
from yard_allinone.targets import TARGETS, parse_targets
from yard_allinone.up import UpOptions, process_specs
from yard_billing.settings import BillingSettings
from yard_client.cli.main import build_app
from yard_gateway.settings import GatewaySettings
from yard_inventory.settings import InventorySettings
from yard_obs import otlp_settings
from yard_obs.otlp_settings import OtelSettings, Protocol
from yard_placement.settings import PlacementSettings
from yard_runtime.settings import KafkaSettings, ProcessSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "gateway": GatewaySettings,
    "inventory": InventorySettings,
    "admission": AdmissionSettings,
    "placement": PlacementSettings,
    "billing": BillingSettings,
    "agent": AgentSettings,
}
OWN = sorted(of_gpuyard())
WITHOUT_DATABASE = {"agent-1", "agent-2"}
# The log's housekeeping; on Kafka the brokers do it.
NOT_ON_KAFKA = {"retention"}


def _targets(name: str) -> list[str]:
    command = containers()[name]["command"]
    return ["agent"] if command == ["agent"] else parse_targets(command[command.index("--target") + 1])


@pytest.mark.parametrize("name", [*OWN, "topics"])
def test_the_command_is_one_of_yard(name: str) -> None:
    """Parsed by the command line itself, which raises for a command, option or argument that it does not have."""
    command = typer.main.get_command(build_app())
    context = command.make_context("yard", list(containers()[name]["command"]), resilient_parsing=False)
    while isinstance(command, typer.core.TyperGroup):
        word, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(word, rest, parent=context)


def test_every_service_has_a_container_of_its_own() -> None:
    targets = [target for name in OWN for target in _targets(name)]
    assert set(targets) == TARGETS.keys() - NOT_ON_KAFKA
    assert sorted(targets) == sorted([*(TARGETS.keys() - NOT_ON_KAFKA), "agent"])  # two agents, one of the others
    for name in OWN:
        assert _targets(name) == [re.sub(r"-\d+$", "", name)]


def _known_variables(target: str) -> set[str]:
    known = {f"YARD_{field.upper()}" for field in ProcessSettings.model_fields}
    known |= {"YARD_KAFKA"} | {f"YARD_KAFKA_{f.upper()}" for f in KafkaSettings.model_fields if f != "bootstrap"}
    if target in SETTINGS:
        known |= {f"YARD_{target.upper()}__{field.upper()}" for field in SETTINGS[target].model_fields}
    return known


@pytest.mark.parametrize("name", OWN)
def test_every_variable_is_a_setting_that_the_service_has(name: str) -> None:
    """pydantic ignores a variable that it does not know: a wrong name would silently leave the default."""
    [target] = _targets(name)
    given = {variable for variable in environment(name) if not variable.startswith("OTEL_")}
    assert given <= _known_variables(target)
    assert set(environment("topics")) <= _known_variables("topics")


@pytest.mark.parametrize("name", OWN)
def test_the_values_are_ones_that_the_service_takes(name: str) -> None:
    [target] = _targets(name)
    with patch.dict(os.environ, environment(name), clear=True):
        process = ProcessSettings()  # type: ignore[call-arg]
        kafka = KafkaSettings().options()
        telemetry = OtelSettings.read(os.environ)
        if target in SETTINGS:
            SETTINGS[target]()
    assert kafka is not None
    assert (process.database_url is None) == (name in WITHOUT_DATABASE)
    assert process.metrics_token is not None
    assert process.metrics_token != process.internal_token
    assert telemetry.traces is not None
    assert telemetry.metrics is None, "they are scraped, and would be there twice"


@pytest.mark.parametrize("name", OWN)
def test_every_opentelemetry_variable_is_one_that_is_read(name: str) -> None:
    text = Path(otlp_settings.__file__).read_text()
    for variable in (v for v in environment(name) if v.startswith("OTEL_")):
        signal = re.sub(r"_(TRACES|METRICS)_EXPORTER$", "_{signal.upper()}_EXPORTER", variable)
        shared = re.sub(r"_(ENDPOINT|PROTOCOL|HEADERS|TIMEOUT)$", "_{what}", variable)
        assert any(form in text for form in (variable, signal, shared)), variable


def test_nothing_that_a_process_needs_of_its_own_is_missing(tmp_path: Path) -> None:
    """What `yard up` sets for a service, its container sets too; what is the machine's is the image's business."""
    specs = process_specs(Installation(tmp_path), UpOptions(), "postgresql://nowhere/none")
    by_prefix = {
        prefix: {variable for spec in specs for variable in spec.env if variable.startswith(prefix)}
        for prefix in ("YARD_GATEWAY__", "YARD_AGENT__")
    }
    assert by_prefix["YARD_GATEWAY__"] <= environment("gateway").keys()
    for agent in WITHOUT_DATABASE:
        assert by_prefix["YARD_AGENT__"] <= environment(agent).keys()


def test_the_gateway_finds_every_owner_where_it_listens(tmp_path: Path) -> None:
    upstreams = json.loads(environment("gateway")["YARD_GATEWAY__UPSTREAMS"])
    specs = process_specs(Installation(tmp_path), UpOptions(), "postgresql://nowhere/none")
    [wanted] = [json.loads(v) for spec in specs for n, v in spec.env.items() if n == "YARD_GATEWAY__UPSTREAMS"]
    assert upstreams.keys() == wanted.keys()
    for owner, address in upstreams.items():
        container = named(host_of(address))
        assert _targets(container) == [owner]
        assert port_of(address) == port_of(environment(container)["YARD_LISTEN"])
        assert together("gateway", container)


def test_the_published_port_is_the_one_where_the_gateway_listens() -> None:
    [published] = containers()["gateway"]["ports"]
    assert port_of(published) == port_of(environment("gateway")["YARD_GATEWAY__HTTP"])


@pytest.mark.parametrize("name", OWN)
def test_listeners_are_reachable_from_other_containers_and_do_not_collide(name: str) -> None:
    listening = [
        value
        for variable, value in environment(name).items()
        if variable in ("YARD_LISTEN", "YARD_GATEWAY__HTTP", "YARD_AGENT__LISTEN")
    ]
    assert {host_of(address) for address in listening} == {"0.0.0.0"}
    assert len({port_of(address) for address in listening}) == len(listening)


@pytest.mark.parametrize("name", sorted(WITHOUT_DATABASE))
def test_an_agent_is_reached_under_the_name_that_it_tells(name: str) -> None:
    own = environment(name)
    assert port_of(own["YARD_AGENT__ADVERTISE_URL"]) == port_of(own["YARD_AGENT__LISTEN"])
    for host in (host_of(own["YARD_AGENT__ADVERTISE_URL"]), own["YARD_AGENT__ADVERTISE_ADDR"]):
        assert named(host) == name
        # One address for everybody: a name that several networks know may mean another one for each reader.
        assert [network for network in containers()[name]["networks"].values() if network] == [{"aliases": [host]}]
        assert host in containers()[name]["networks"]["nodes"]["aliases"]
    assert "nodes" in containers()["gateway"]["networks"]


def test_each_agent_has_nodes_and_a_journal_of_its_own() -> None:
    nodes = [node["name"] for name in sorted(WITHOUT_DATABASE) for node in _nodes(name)]
    assert len(set(nodes)) == len(nodes) == 2
    for name in WITHOUT_DATABASE:
        assert containers()[name]["volumes"] == [f"{name}:{environment(name)['YARD_AGENT__DATA_DIR']}"]
        for node in _nodes(name):
            assert node["devices"] == "8xH100-80GB"


def _nodes(name: str) -> list[dict[str, object]]:
    return json.loads(environment(name)["YARD_AGENT__NODES"])


@pytest.mark.parametrize("name", OWN)
def test_a_service_reaches_kafka_its_database_and_the_collector(name: str) -> None:
    own = environment(name)
    assert together(name, named(host_of(own["YARD_KAFKA"])))
    advertised = environment("kafka")["KAFKA_ADVERTISED_LISTENERS"].removeprefix("PLAINTEXT://")
    assert own["YARD_KAFKA"] == advertised
    assert own["YARD_KAFKA_SECURITY_PROTOCOL"] == "PLAINTEXT"
    endpoint = own["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert together(name, named(host_of(endpoint)))
    assert Protocol(own["OTEL_EXPORTER_OTLP_PROTOCOL"]) is Protocol.GRPC
    if name not in WITHOUT_DATABASE:
        url = own["YARD_DATABASE_URL"]
        account, _, place = url.removeprefix("postgresql://").rpartition("@")
        postgres = environment("postgres")
        assert account == f"{postgres['POSTGRES_USER']}:{postgres['POSTGRES_PASSWORD']}"
        assert place == f"postgres:5432/{postgres['POSTGRES_DB']}"
        assert together(name, "postgres")


def test_the_database_has_room_for_two_instances_of_every_service() -> None:
    command = containers()["postgres"]["command"]
    [limit] = [int(word.split("=")[1]) for word in command if word.startswith("max_connections=")]
    per_process = ProcessSettings.model_fields["pool_size"].default + 4  # sqlalchemy's overflow, see yard_store.engine
    assert 2 * per_process * len([name for name in OWN if name not in WITHOUT_DATABASE]) < limit
