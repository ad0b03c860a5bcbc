"""Queries in the catalogue's names: a metric or label that it does not have fails here, not in Grafana."""

from collections.abc import Sequence

from yard_obs.catalogue import Kind, Metric, NotInCatalogue, prometheus_label, prometheus_name

RATE = "$__rate_interval"
"""Grafana's: at least four scrapes, and no shorter than a point of the graph."""


def series(metric: Metric, suffix: str = "", **where: str) -> str:
    """The metric's series whose labels are `where`: `$queue` stands for a variable, `~…` for a pattern."""
    matchers = ",".join(_matcher(metric, label, value) for label, value in where.items())
    return f"{prometheus_name(metric)}{suffix}" + (f"{{{matchers}}}" if matchers else "")


def gauge(metric: Metric, *by: str, **where: str) -> str:
    """The sum by these labels. While a service moves, two instances may show the same: it counts once."""
    _require(metric, Kind.GAUGE)
    once = f"max by ({_labels(metric, metric.labels)}) ({series(metric, **where)})"
    return once if set(by) == set(metric.labels) else _sum(metric, by, once)


def rate(metric: Metric, *by: str, window: str = RATE, **where: str) -> str:
    """Of a counter: how much a second. Of a histogram: how many a second."""
    suffix = "" if metric.kind is Kind.COUNTER else "_count"
    return _sum(metric, by, f"rate({series(metric, suffix, **where)}[{window}])")


def quantile(share: float, metric: Metric, *by: str, window: str = RATE, **where: str) -> str:
    """Of a histogram, from 0 to 1; between two bounds of its buckets it is a straight line."""
    _require(metric, Kind.HISTOGRAM)
    buckets = f"rate({series(metric, '_bucket', **where)}[{window}])"
    names = ", ".join(["le", *(_label(metric, label) for label in by)])
    return f"histogram_quantile({share:g}, sum by ({names}) ({buckets}))"


def mean(metric: Metric, *by: str, window: str = RATE, **where: str) -> str:
    """Of a histogram."""
    _require(metric, Kind.HISTOGRAM)
    total = _sum(metric, by, f"rate({series(metric, '_sum', **where)}[{window}])")
    return f"{total} / {rate(metric, *by, window=window, **where)}"


def values(metric: Metric, label: str) -> str:
    """What a variable offers."""
    suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
    return f"label_values({prometheus_name(metric)}{suffix}, {_label(metric, label)})"


def legend(*labels: str) -> str:
    return " · ".join(f"{{{{{prometheus_label(label)}}}}}" for label in labels)


def _sum(metric: Metric, by: Sequence[str], inner: str) -> str:
    return f"sum by ({_labels(metric, by)}) ({inner})" if by else f"sum({inner})"


def _labels(metric: Metric, labels: Sequence[str]) -> str:
    return ", ".join(_label(metric, label) for label in labels)


def _label(metric: Metric, label: str) -> str:
    """Takes the catalogue's name and PromQL's: keyword arguments cannot have dots."""
    for known in metric.labels:
        if label in (known, prometheus_label(known)):
            return prometheus_label(known)
    raise NotInCatalogue(f"{metric.name} has no label {label!r}")


def _matcher(metric: Metric, label: str, value: str) -> str:
    operator, text = ("=~", value.removeprefix("~")) if value[0] in "$~" else ("=", value)
    return f'{_label(metric, label)}{operator}"{text}"'


def _require(metric: Metric, kind: Kind) -> None:
    if metric.kind is not kind:
        raise NotInCatalogue(f"{metric.name} is no {kind}")
