"""The configurations of collector, Tempo, Prometheus and Grafana against each other and against the containers."""

import re
from typing import Any

import pytest

from support.compose_stack import (
    COMPOSE,
    configuration,
    containers,
    environment,
    host_of,
    mounted,
    named,
    of_gpuyard,
    port_of,
    stack,
    together,
)

COLLECTOR = configuration("otel-collector/config.yaml")
TEMPO = configuration("tempo/tempo.yaml")
PROMETHEUS = configuration("prometheus/prometheus.yaml")
DATA_SOURCES: dict[str, dict[str, Any]] = {
    source["uid"]: source
    for source in configuration("grafana/provisioning/datasources/datasources.yaml")["datasources"]
}
[PROVIDER] = configuration("grafana/provisioning/dashboards/dashboards.yaml")["providers"]
GRAFANA_PORT = 3000  # Grafana's own
PROMETHEUS_PORT = 9090  # Prometheus's own
DASHBOARDS = sorted((COMPOSE / "grafana/dashboards").glob("*.json"))


def _job(name: str) -> dict[str, Any]:
    [found] = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == name]
    return found


@pytest.mark.parametrize("name", ["otel-collector", "tempo", "prometheus"])
def test_a_program_is_told_the_configuration_that_is_mounted(name: str) -> None:
    [flag] = [word for word in containers()[name]["command"] if re.match(r"--?config(\.file)?=", word)]
    assert flag.split("=")[1] in mounted(name)


def test_services_send_to_a_port_at_which_the_collector_listens() -> None:
    protocols = COLLECTOR["receivers"]["otlp"]["protocols"]
    for name in of_gpuyard():
        endpoint = environment(name)["OTEL_EXPORTER_OTLP_ENDPOINT"]
        receiver = {"grpc": "grpc", "http/protobuf": "http"}[environment(name)["OTEL_EXPORTER_OTLP_PROTOCOL"]]
        assert named(host_of(endpoint)) == "otel-collector"
        assert port_of(endpoint) == port_of(protocols[receiver]["endpoint"])
        assert host_of(protocols[receiver]["endpoint"]) == "0.0.0.0"
    assert {p: port_of(protocols[p]["endpoint"]) for p in protocols} == {"grpc": 4317, "http": 4318}


def test_the_collectors_pipelines_use_all_that_is_configured_and_nothing_else() -> None:
    pipelines = COLLECTOR["service"]["pipelines"].values()
    for part in ("receivers", "processors", "exporters"):
        assert {used for pipeline in pipelines for used in pipeline[part]} == set(COLLECTOR[part])
    assert COLLECTOR["service"]["extensions"] == list(COLLECTOR["extensions"])
    for pipeline in pipelines:
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"


def test_traces_go_to_tempo() -> None:
    endpoint = COLLECTOR["exporters"]["otlp/tempo"]["endpoint"]
    assert named(host_of(endpoint)) == "tempo"
    assert port_of(endpoint) == port_of(TEMPO["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"])
    assert together("otel-collector", "tempo")


def test_what_is_written_to_prometheus_it_takes() -> None:
    written = [
        ("otel-collector", COLLECTOR["exporters"]["prometheusremotewrite"]["endpoint"]),
        ("tempo", TEMPO["metrics_generator"]["storage"]["remote_write"][0]["url"]),
    ]
    for writer, url in written:
        assert url == f"http://prometheus:{PROMETHEUS_PORT}/api/v1/write"
        assert together(writer, "prometheus")
    flags = containers()["prometheus"]["command"]
    assert "--web.enable-remote-write-receiver" in flags
    assert "--enable-feature=exemplar-storage" in flags
    assert not [flag for flag in flags if flag.startswith("--web.listen-address")]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("tempo", [TEMPO["storage"]["trace"]["local"]["path"], TEMPO["storage"]["trace"]["wal"]["path"]]),
        ("tempo", [TEMPO["metrics_generator"]["storage"]["path"]]),
        ("prometheus", [f.split("=")[1] for f in containers()["prometheus"]["command"] if "storage.tsdb.path" in f]),
        ("kafka", [environment("kafka")["KAFKA_LOG_DIRS"]]),
    ],
)
def test_what_must_stay_is_written_to_a_volume(name: str, paths: list[str]) -> None:
    volumes = [target for target, source in mounted(name).items() if isinstance(source, str)]
    for path in paths:
        assert any(path == volume or path.startswith(f"{volume}/") for volume in volumes), path


def test_prometheus_scrapes_every_container_of_ours_at_its_port() -> None:
    [discovery] = _job("gpuyard")["dns_sd_configs"]
    assert sorted(discovery["names"]) == sorted(of_gpuyard())
    for name in of_gpuyard():
        assert port_of(environment(name)["YARD_LISTEN"]) == discovery["port"]
        assert together("prometheus", name)
    [relabelled] = _job("gpuyard")["relabel_configs"]
    # `service` is a label that our metrics have themselves.
    assert relabelled == {"source_labels": ["__meta_dns_name"], "target_label": "target"}


def test_the_token_that_prometheus_shows_is_the_one_for_metrics_alone() -> None:
    path = _job("gpuyard")["authorization"]["credentials_file"]
    prometheus = containers()["prometheus"]
    assert f'printf %s "$YARD_METRICS_TOKEN" >{path}' in " ".join(prometheus["entrypoint"])
    [scratch] = [mount.split(":")[0] for mount in prometheus["tmpfs"]]
    assert path.startswith(f"{scratch}/")
    for name in of_gpuyard():
        assert environment(name)["YARD_METRICS_TOKEN"] == environment("prometheus")["YARD_METRICS_TOKEN"]
    assert "YARD_INTERNAL_TOKEN" not in environment("prometheus")


@pytest.mark.parametrize(
    ("job", "port"),
    [
        (
            "otel-collector",
            COLLECTOR["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]["port"],
        ),
        ("tempo", TEMPO["server"]["http_listen_port"]),
        ("grafana", GRAFANA_PORT),
    ],
)
def test_prometheus_scrapes_those_who_watch(job: str, port: int) -> None:
    [[target]] = [config["targets"] for config in _job(job)["static_configs"]]
    assert (named(host_of(target)), port_of(target)) == (job, port)
    assert together("prometheus", job)


def test_rules_are_mounted_where_prometheus_looks() -> None:
    for path in PROMETHEUS["rule_files"]:
        source = mounted("prometheus")[path]
        assert not isinstance(source, str)
        assert source.is_file()


def test_every_container_that_prometheus_looks_for_is_missed_when_it_is_gone() -> None:
    [group] = configuration("prometheus/stack.yaml")["groups"]
    [rule] = group["rules"]
    [discovery] = _job("gpuyard")["dns_sd_configs"]
    assert re.findall(r'absent\(up\{job="gpuyard",target="([\w-]+)"\}\)', rule["expr"]) == discovery["names"]
    page, _, section = rule["annotations"]["runbook_url"].partition("#")
    assert page == "compose/README.md"
    headings = re.findall(r"^#+ (.+)$", (COMPOSE / "README.md").read_text(), re.MULTILINE)
    assert section in {heading.lower().replace(" ", "-") for heading in headings}


def test_grafana_asks_prometheus_and_tempo_where_they_listen() -> None:
    ports = {"prometheus": PROMETHEUS_PORT, "tempo": TEMPO["server"]["http_listen_port"]}
    assert DATA_SOURCES.keys() == ports.keys()
    for uid, source in DATA_SOURCES.items():
        assert source["type"] == uid
        assert (named(host_of(source["url"])), port_of(source["url"])) == (uid, ports[uid])
        assert together("grafana", uid)
    assert [uid for uid, source in DATA_SOURCES.items() if source.get("isDefault")] == ["prometheus"]


def test_traces_and_metrics_lead_to_each_other() -> None:
    assert DATA_SOURCES["prometheus"]["jsonData"]["exemplarTraceIdDestinations"][0]["datasourceUid"] == "tempo"
    tempo = DATA_SOURCES["tempo"]["jsonData"]
    assert tempo["serviceMap"]["datasourceUid"] == tempo["tracesToMetrics"]["datasourceUid"] == "prometheus"
    # They are made by Tempo, by these two processors.
    processors = TEMPO["overrides"]["defaults"]["metrics_generator"]["processors"]
    assert processors == ["service-graphs", "span-metrics"]
    for query in tempo["tracesToMetrics"]["queries"]:
        assert "traces_spanmetrics_" in query["query"]
        assert "$$__tags" in query["query"], "one dollar sign is a variable of the provisioning file"
    [tag] = tempo["tracesToMetrics"]["tags"]
    assert tag == {"key": "service.name", "value": "service"}


def test_grafana_finds_dashboards_and_its_first_page() -> None:
    folder = mounted("grafana")[PROVIDER["options"]["path"]]
    assert folder == (COMPOSE / "grafana/dashboards").resolve()
    home = environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.rpartition("/")[0] == PROVIDER["options"]["path"]
    assert COMPOSE / "grafana/dashboards" / home.rpartition("/")[2] in DASHBOARDS
    assert mounted("grafana")["/etc/grafana/provisioning"] == (COMPOSE / "grafana/provisioning").resolve()


def _data_sources(value: Any) -> set[tuple[str, str]]:
    """Every `{type, uid}` in a dashboard."""
    if isinstance(value, list):
        return {found for item in value for found in _data_sources(item)}
    if not isinstance(value, dict):
        return set()
    own = {(value["type"], value["uid"])} if value.keys() == {"type", "uid"} else set()
    return own | {found for item in value.values() for found in _data_sources(item)}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_data_sources_that_are_provisioned(path: Any) -> None:
    asked = _data_sources(configuration(f"grafana/dashboards/{path.name}"))
    assert ("prometheus", "prometheus") in asked
    assert asked <= {(source["type"], uid) for uid, source in DATA_SOURCES.items()}


def test_nothing_is_configured_for_a_network_that_is_not_there() -> None:
    for name, container in containers().items():
        assert set(container["networks"]) <= set(stack()["networks"]), name
