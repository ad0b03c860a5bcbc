"""The kinds of panel that the dashboards are made of, and how they stand on the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

PROMETHEUS = models.DataSourceRef(type_val="prometheus", uid="prometheus")
TEMPO_UID = "tempo"
GREEN, YELLOW, RED = "green", "yellow", "red"
_GRID_COLUMNS = 24

PanelBuilder = timeseries.Panel | stat.Panel | bargauge.Panel | heatmap.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and what its series are called: `{{label}}` in braces. `instant`: only the value of now."""

    expr: str
    legend: str
    instant: bool = False
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """`unit` is Grafana's id of a unit. `limits`: from which value on a colour holds, beginning with the lowest."""

    unit: str
    limits: tuple[tuple[float | None, str], ...] = ((None, GREEN),)
    decimals: int | None = None
    maximum: float | None = None


def _targets(queries: Sequence[Query], kind: prometheus_models.PromQueryFormat) -> list[prometheus.Dataquery]:
    found: list[prometheus.Dataquery] = []
    for number, query in enumerate(queries):
        target = (
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + number))
            .datasource(PROMETHEUS)
            .expr(query.expr)
            .legend_format(query.legend)
            .format(kind)
        )
        if query.exemplars:
            target = target.exemplar(True)
        found.append(target.instant() if query.instant else target.range())
    return found


def _thresholds(look: Look) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=value, color=color) for value, color in look.limits]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def lines(title: str, description: str, look: Look, *queries: Query, stacked: bool = False) -> timeseries.Panel:
    """Curves over time. Limits above the first show as a dashed line each."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(list(_targets(queries, prometheus_models.PromQueryFormat.TIME_SERIES)))
        .unit(look.unit)
        .min(0)
        .thresholds(_thresholds(look))
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1)
        .fill_opacity(70 if stacked else 8)
        .show_points(common_models.VisibilityMode.NEVER)
        .span_nulls(60_000)  # a scrape that failed is no gap; a minute is
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if len(look.limits) > 1:
        style = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    if look.maximum is not None:
        panel = panel.max(look.maximum)
    return panel if look.decimals is None else panel.decimals(look.decimals)


def figure(title: str, description: str, look: Look, query: Query) -> stat.Panel:
    """One number, coloured by its limits, with its course behind it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(list(_targets([query], prometheus_models.PromQueryFormat.TIME_SERIES)))
        .unit(look.unit)
        .thresholds(_thresholds(look))
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("–")
    )
    return panel if look.decimals is None else panel.decimals(look.decimals)


def bars(title: str, description: str, look: Look, query: Query) -> bargauge.Panel:
    """What there is now, a bar for each series."""
    return (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(list(_targets([query], prometheus_models.PromQueryFormat.TIME_SERIES)))
        .unit(look.unit)
        .min(0)
        .thresholds(_thresholds(look))
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("–")
    )


def heat(title: str, description: str, unit: str, query: Query) -> heatmap.Panel:
    """How a histogram's recordings spread over its buckets, over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets(list(_targets([query], prometheus_models.PromQueryFormat.HEATMAP)))
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Turbo")
            .steps(64)
            .exponent(0.5)
            .reverse(False)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .cell_gap(1)
        .show_legend()
        .mode(common_models.TooltipDisplayMode.SINGLE)
    )


def traces_of(service: str) -> dashboard.DashboardLink:
    """A link to the service's traces of the range that is shown."""
    pane = (
        '{"yard":{"datasource":"%s","queries":[{"refId":"A","datasource":{"type":"tempo","uid":"%s"},'
        '"queryType":"traceql","query":"{resource.service.name=~\\"gpuyard-%s\\"}"}],'
        '"range":{"from":"${__from}","to":"${__to}"}}}' % (TEMPO_UID, TEMPO_UID, service)
    )
    return (
        dashboard.DashboardLink("Traces")
        .type(models.DashboardLinkType.LINK)
        .url(f"/explore?schemaVersion=1&panes={pane}")
        .target_blank(True)
    )


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable with the values that a label has; several can be chosen, at first all."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def page(uid: str, title: str, description: str) -> dashboard.Dashboard:
    """An empty dashboard that refreshes itself and links to the others."""
    others = (
        dashboard.DashboardLink("gpuyard")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["gpuyard"])
        .as_dropdown(True)
        .keep_time(True)
        .include_vars(False)
    )
    return (
        dashboard.Dashboard(title)
        .uid(f"gpuyard-{uid}")
        .description(description)
        .tags(["gpuyard"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(others)
    )


class Layout:
    """Puts panels onto a dashboard, in lines from left to right and from top to bottom, with a number each."""

    def __init__(self, board: dashboard.Dashboard) -> None:
        self._board = board
        self._y = 0
        self._last_id = 0

    def title(self, text: str) -> None:
        """A heading over what follows."""
        row = dashboard.Row(text).id(self._next()).grid_pos(models.GridPos(h=1, w=_GRID_COLUMNS, x=0, y=self._y))
        self._board.with_row(row)
        self._y += 1

    def line(self, height: int, *panels: Builder[models.Panel]) -> None:
        """Panels of one width beside each other; `height` in grid units of about 30 pixels."""
        width, rest = divmod(_GRID_COLUMNS, len(panels))
        x = 0
        for number, panel in enumerate(panels):
            wide = width + (1 if number < rest else 0)
            position = models.GridPos(h=height, w=wide, x=x, y=self._y)
            self._board.with_panel(panel.id(self._next()).grid_pos(position))  # type: ignore[attr-defined]
            x += wide
        self._y += height

    def _next(self) -> int:
        self._last_id += 1
        return self._last_id
