"""The committed dashboards are what the code says, name only what the catalogue has, and are fit to be looked at."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.dashboards import (
    ALERTS,
    COMPOSE,
    DASHBOARDS,
    Asked,
    alert_queries,
    alerts,
    dashboards,
    panel_queries,
    panels,
    variables_in,
)
from yard_obs.catalogue import METRICS, SPANS, Kind, Metric, prometheus_label, prometheus_series

BOARDS = dashboards()
BY_SERIES = {series: metric for metric in METRICS.values() for series in prometheus_series(metric)}
DATA_SOURCES = {"prometheus", "tempo"}
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_OF_PROMETHEUS = {"up"}
_WORDS = frozenset(
    {"sum", "max", "min", "count", "by", "rate", "increase", "histogram_quantile", "absent", "vector"}
    | {"and", "or", "unless", "offset", "label_values"}
)


def _names(promql: str) -> set[str]:
    """Every name in a query that is no function, operator, text, variable or duration."""
    bare = re.sub(r'"(\\.|[^"\\])*"|\$\w+|\[[^\]]*\]|\boffset\s+\w+|\b\d[\w.]*', " ", promql)
    return set(_NAME.findall(bare)) - _WORDS


def _unknown(promql: str) -> set[str]:
    """What of a query neither the catalogue nor Prometheus itself has: metrics, and labels that no metric of it has."""
    names = _names(promql)
    metrics = [BY_SERIES[name] for name in names & BY_SERIES.keys()]
    labels = {prometheus_label(label) for metric in metrics for label in metric.labels}
    buckets = {"le"} if any(metric.kind is Kind.HISTOGRAM for metric in metrics) else set[str]()
    return names - BY_SERIES.keys() - labels - buckets - _OF_PROMETHEUS


def _selectors(promql: str) -> list[tuple[Metric, set[str]]]:
    """Each series of a query with the labels that its braces match."""
    found = re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", promql)
    return [(BY_SERIES[name], set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces))) for name, braces in found]


def test_the_committed_files_are_what_the_code_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, COMPOSE / "grafana" / "build.py", tmp_path], check=True, timeout=60)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    committed = {path.relative_to(COMPOSE): path.read_text() for path in [*DASHBOARDS.iterdir(), ALERTS]}
    assert written == committed, "run `make dashboards`"


def test_writing_removes_dashboards_that_are_no_more(tmp_path: Path) -> None:
    left = tmp_path / "grafana" / "dashboards" / "of-old.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    subprocess.run([sys.executable, COMPOSE / "grafana" / "build.py", tmp_path], check=True, timeout=60)
    assert {path.stem for path in left.parent.iterdir()} == BOARDS.keys()


def test_the_dashboards_are_those_of_the_design() -> None:
    assert BOARDS.keys() == {"fleet", "queues", "scheduler", "pipeline"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("asked", [*panel_queries(), *alert_queries()], ids=lambda asked: asked.where)
def test_a_query_names_only_what_the_catalogue_has(asked: Asked) -> None:
    assert _names(asked.promql) & (BY_SERIES.keys() | _OF_PROMETHEUS)
    assert _unknown(asked.promql) == set()
    for metric, labels in _selectors(asked.promql):
        assert labels <= {prometheus_label(label) for label in metric.labels}, metric.name


@pytest.mark.parametrize(
    ("promql", "unknown"),
    [
        ("sum(yard_job_count)", set[str]()),
        ("sum(yard_jobs)", {"yard_jobs"}),
        ("sum by (pool) (yard_job_count)", {"pool"}),
        ('yard_job_count{pool="a"}', {"pool"}),
        ("sum by (le) (yard_job_count)", {"le"}),
        ("rate(yard_relay_events[5m])", {"yard_relay_events"}),
        ("rate(yard_relay_events_total[$__rate_interval] offset 5m) > 1e3", set[str]()),
        ("yard_admission_wait_duration_seconds", {"yard_admission_wait_duration_seconds"}),
        ('sum by (queue) (yard_job_count{state="yard_jobs"})', set[str]()),
    ],
)
def test_the_check_of_names_sees_mistakes(promql: str, unknown: set[str]) -> None:
    assert _unknown(promql) == unknown


# The readings of single devices are for whoever looks at a node, not for these dashboards.
OF_SERVICES = [metric for metric in METRICS.values() if not metric.name.startswith("hw.")]


@pytest.mark.parametrize("metric", OF_SERVICES, ids=lambda metric: metric.name)
def test_every_metric_of_the_services_is_shown(metric: Metric) -> None:
    assert any(set(prometheus_series(metric)) & _names(asked.promql) for asked in panel_queries())


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap_and_stay_on_the_grid(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(BOARDS[name]):
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_can_be_read(name: str) -> None:
    found = panels(BOARDS[name])
    assert len({panel["id"] for panel in found}) == len(found)
    shown = [panel for panel in found if panel["type"] != "row"]
    assert shown
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["title"]
        assert panel["description"].endswith((".", "`.")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_a_legend_has_the_labels_of_its_query(name: str) -> None:
    for panel in panels(BOARDS[name]):
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            assert shown <= _names(target["expr"]), panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_variables_are_declared_and_used(name: str) -> None:
    board = BOARDS[name]
    declared = {variable["name"]: variable for variable in board["templating"]["list"]}
    used = {
        found
        for panel in panels(board)
        for target in panel.get("targets", ())
        for found in variables_in(target["expr"])
    }
    assert used == declared.keys()
    for variable in declared.values():
        query = variable["query"]["query"]
        assert query.startswith("label_values(")
        assert _unknown(query) == set()
        assert variable["includeAll"]
        assert variable["multi"]


def _data_sources(found: Any) -> set[str]:
    if isinstance(found, list):
        return {uid for item in found for uid in _data_sources(item)}
    if not isinstance(found, dict):
        return set()
    own = {found["datasource"]["uid"]} if isinstance(found.get("datasource"), dict) else set[str]()
    return own | {uid for value in found.values() for uid in _data_sources(value)}


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_asks_only_the_provisioned_data_sources(name: str) -> None:
    # Grafana's own annotations come from itself.
    assert _data_sources(BOARDS[name]) - {"-- Grafana --"} <= DATA_SOURCES


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_leads_to_traces(name: str) -> None:
    [link] = [link for link in BOARDS[name]["links"] if link["title"] == "Traces"]
    [panes] = parse_qs(urlsplit(link["url"]).query)["panes"]
    [pane] = json.loads(panes).values()
    assert pane["datasource"] == "tempo"
    [query] = pane["queries"]
    assert set(re.findall(r"span\.([\w.]+)", query["query"])) <= {name for span in SPANS for name in span.attributes}
    assert set(re.findall(r"kind = (\w+)", query["query"])) <= {span.kind for span in SPANS}
    assert set(re.findall(r'name = "([^"]+)"', query["query"])) <= {span.name for span in SPANS}


def test_every_alert_leads_to_its_section() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        path, anchor = rule["annotations"]["runbook_url"].split("#")
        headings = re.findall(r"^#+ (.+)$", (COMPOSE.parent / path).read_text(), re.MULTILINE)
        # As GitHub makes anchors.
        assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
