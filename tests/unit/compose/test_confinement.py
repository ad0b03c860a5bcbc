"""What each container may do, and what it keeps."""

import re

import pytest
import yaml

from support.compose_stack import COMPOSE, ROOT, containers, mounted, named, stack, together

NAMES = sorted(containers())
# These two images hold one static program: no shell, nothing that could ask it how it is. Prometheus scrapes them.
WITHOUT_SHELL = {"otel-collector", "tempo"}


@pytest.mark.parametrize("name", NAMES)
def test_a_container_gives_up_what_it_does_not_need(name: str) -> None:
    container = containers()[name]
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "userns_mode"} & container.keys()
    assert container["mem_limit"]
    assert container["pids_limit"] >= 64
    assert container["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", NAMES)
def test_a_container_does_not_run_as_root(name: str) -> None:
    # Kafka's image says `USER appuser` itself.
    user = containers()[name].get("user", "appuser" if name == "kafka" else "root")
    assert user.split(":")[0] not in ("root", "0")


@pytest.mark.parametrize("name", NAMES)
def test_a_container_comes_back_by_itself(name: str) -> None:
    assert containers()[name]["restart"] == ("on-failure:5" if name == "topics" else "unless-stopped")


@pytest.mark.parametrize("name", NAMES)
def test_images_are_pinned_to_a_version(name: str) -> None:
    _, _, tag = containers()[name]["image"].rpartition(":")
    assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?", tag)


def test_our_image_has_one_recipe_and_the_version_of_the_distribution() -> None:
    built = [container for container in containers().values() if "build" in container]
    assert [container["build"] for container in built] == [{"context": ".."}]
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert built[0]["image"] == f"gpuyard:{version[1]}"


def test_only_the_gateway_and_grafana_are_published_and_only_to_this_machine() -> None:
    published = {name: container["ports"] for name, container in containers().items() if "ports" in container}
    assert published == {"gateway": ["127.0.0.1:8080:8080"], "grafana": ["127.0.0.1:3000:3000"]}
    # A network without a way out cannot publish anything.
    for name in published:
        assert "edge" in containers()[name]["networks"]
    assert {name for name, network in stack()["networks"].items() if not network.get("internal")} == {"edge"}


@pytest.mark.parametrize("agent", ["agent-1", "agent-2"])
def test_tasks_reach_neither_the_database_nor_what_is_outside(agent: str) -> None:
    assert not together(agent, "postgres")
    assert "edge" not in containers()[agent]["networks"]
    assert "YARD_DATABASE_URL" not in containers()[agent]["environment"]
    assert "YARD_GATEWAY__ADMIN_TOKEN" not in containers()[agent]["environment"]


def test_declared_networks_and_volumes_are_those_that_are_used() -> None:
    assert {n for container in containers().values() for n in container["networks"]} == set(stack()["networks"])
    volumes = {source for name in NAMES for source in mounted(name).values() if isinstance(source, str)}
    assert volumes == set(stack()["volumes"])
    assert "secrets" not in stack()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_mounted_exists_and_is_read_only(name: str) -> None:
    for volume in containers()[name].get("volumes", []):
        source, *_, options = volume.split(":")
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
            assert options == "ro", source


@pytest.mark.parametrize("name", NAMES)
def test_every_container_can_be_asked_how_it_is(name: str) -> None:
    container = containers()[name]
    if name == "topics":
        assert container["healthcheck"] == {"disable": True}  # it ends
    elif container["image"].startswith("gpuyard:"):
        assert "healthcheck" not in container  # the image's own
    elif name in WITHOUT_SHELL:
        assert "healthcheck" not in container
    else:
        assert container["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_container_waits_for_can_be_waited_for(name: str) -> None:
    for other, how in containers()[name].get("depends_on", {}).items():
        waited_for = containers()[named(other)]
        if how["condition"] == "service_completed_successfully":
            assert other == "topics"
        else:
            assert how["condition"] == "service_healthy"
            assert "test" in waited_for["healthcheck"]


def test_the_file_has_no_version_key_and_no_duplicate_keys() -> None:
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: Strict, node: yaml.MappingNode) -> dict[object, object]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), f"twice in line {node.start_mark.line}: {keys}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    document = yaml.load((COMPOSE / "compose.yaml").read_text(), Strict)
    assert "version" not in document
    assert document["name"] == "gpuyard"
