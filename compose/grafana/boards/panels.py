"""How our panels look: Grafana's builders with the choices that all dashboards share."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from boards import promql
from yard_obs.catalogue import Metric

PROMETHEUS = models.DataSourceRef(type_val="prometheus", uid="prometheus")
TEMPO_UID = "tempo"
TAG = "gpuyard"
GPU = "suffix: GPU"

Panel = stat.Panel | timeseries.Panel
Query = tuple[str, str]
"""PromQL and the legend of its series."""


@dataclass(frozen=True)
class Section:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A list to choose from: the label's values; all of them unless somebody chooses."""

    name: str
    title: str
    metric: Metric
    label: str


@dataclass(frozen=True)
class Board:
    """`traces`: the TraceQL of the link to Tempo."""

    uid: str
    title: str
    description: str
    traces: str
    variables: Sequence[Variable]
    sections: Sequence[Section]


def number(
    title: str, description: str, query: str, *, unit: str = "short", width: int = 4, limits: Mapping[float, str] = {}
) -> stat.Panel:
    """A figure of now with its recent course. `limits`: from this value on, this colour."""
    values = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = stat.Panel().title(title).description(description).datasource(PROMETHEUS).unit(unit).no_value("–")
    panel.reduce_options(values).graph_mode(common_models.BigValueGraphMode.AREA)
    panel.color_mode(common_models.BigValueColorMode.VALUE).thresholds(
        _thresholds(limits, "green" if limits else "text")
    )
    return panel.with_target(_target("A", query, "")).height(4).span(width)


def graph(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
    at_most: float | None = None,
    limits: Mapping[float, str] = {},
    colors: Mapping[str, str] = {},
) -> timeseries.Panel:
    """A course over time. `limits` are drawn as lines; `colors`: series → its colour."""
    calcs = ["lastNotNull", "max"]
    panel = timeseries.Panel().title(title).description(description).datasource(PROMETHEUS).unit(unit).min(0)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .calcs(calcs)
        .display_mode(common_models.LegendDisplayMode.TABLE)
        .placement(common_models.LegendPlacement.BOTTOM)
    )
    panel.tooltip(
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )
    panel.show_points(common_models.VisibilityMode.NEVER).line_width(1).fill_opacity(60 if stacked else 8)
    if at_most is not None:
        panel.max(at_most)
    if stacked:
        panel.stacking(common.StackingConfig().group("A").mode(common_models.StackingMode.NORMAL))
    if limits:
        style = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_thresholds(limits, "transparent")).thresholds_style(style)
    for name, color in colors.items():
        panel.override_by_name(name, [models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    for index, (query, legend) in enumerate(queries):
        panel.with_target(_target(chr(ord("A") + index), query, legend))
    return panel.height(8).span(width)


def quantiles(title: str, description: str, metric: Metric, *by: str, **options: Any) -> timeseries.Panel:
    """The median and the 95th percentile of a duration. `options`: `window`, and labels as `series` takes them."""
    queries = [
        (promql.quantile(share, metric, *by, **options), " ".join([*([promql.legend(*by)] if by else []), name]))
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    ]
    return graph(title, description, queries, unit="s")


def build(board: Board) -> dict[str, Any]:
    """The dashboard's JSON. Its numbers depend on nothing but the board: the same board gives the same text."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .link(_other_boards())
        .link(dashboard.DashboardLink("Traces").type(models.DashboardLinkType.LINK).url(_explore(board.traces)))
    )
    for variable in board.variables:
        built.with_variable(_variable(variable))
    numbers = iter(range(1, 1000))
    for section in board.sections:
        built.with_row(dashboard.Row(section.title).id(next(numbers)))
        for panel in section.panels:
            built.with_panel(panel.id(next(numbers)))
    return json.loads(json.dumps(built.build(), cls=JSONEncoder))


def _target(ref: str, query: str, legend: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(ref).datasource(PROMETHEUS).expr(query).range()
    return target.legend_format(legend) if legend else target


def _thresholds(limits: Mapping[float, str], base: str) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(None, base), *(models.Threshold(value, color) for value, color in limits.items())]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(PROMETHEUS)
        .query({"query": promql.values(variable.metric, variable.label), "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _other_boards() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("gpuyard").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def _explore(traces: str) -> str:
    """Grafana's Explore at Tempo, with a TraceQL query."""
    query = {"refId": "A", "datasource": {"type": "tempo", "uid": TEMPO_UID}, "queryType": "traceql", "query": traces}
    pane = {"datasource": TEMPO_UID, "queries": [query], "range": {"from": "now-1h", "to": "now"}}
    return f"/explore?schemaVersion=1&orgId=1&panes={quote(json.dumps({'traces': pane}))}"
