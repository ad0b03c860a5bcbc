"""What compose/ asks Prometheus: the queries of the committed dashboards, and the alerts."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[2] / "compose"
DASHBOARDS = COMPOSE / "grafana" / "dashboards"
ALERTS = COMPOSE / "prometheus" / "alerts.yaml"

# Grafana's own variables, and what stands for them where Grafana does not.
_BUILT_IN = {"__rate_interval": "1m", "__range": "1h", "__interval": "1s"}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class Asked:
    """`where`: dashboard, panel and query, or the alert: for messages and test ids."""

    where: str
    promql: str


def dashboards() -> dict[str, dict[str, Any]]:
    """File name without ending → dashboard."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows and what stands in collapsed rows too."""
    return [found for panel in board["panels"] for found in (panel, *panel.get("panels", ()))]


def panel_queries() -> Iterator[Asked]:
    for name, board in dashboards().items():
        for panel in panels(board):
            for target in panel.get("targets", ()):
                yield Asked(f"{name}: {panel['title']}: {target['refId']}", target["expr"])


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alert_queries() -> Iterator[Asked]:
    for rule in alerts():
        yield Asked(rule["alert"], rule["expr"])


def variables_in(text: str) -> set[str]:
    """The variables of a dashboard that a query names; not Grafana's own."""
    return set(_VARIABLE.findall(text)) - _BUILT_IN.keys()


def filled(promql: str) -> str:
    """As Grafana sends it when all values of the variables are chosen."""
    return _VARIABLE.sub(lambda found: _BUILT_IN.get(found[1], ".*"), promql)
