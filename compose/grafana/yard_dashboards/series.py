"""PromQL out of the catalogue: a query names only metrics and labels that exist."""

from yard_obs.catalogue import Kind, Metric, NotInCatalogue, prometheus_label, prometheus_name

WINDOW = "$__rate_interval"


def series(metric: Metric, suffix: str = "", /, **matchers: str) -> str:
    """A selector. `state="free"` matches that value, `queue="$queue"` a variable's choice; raises NotInCatalogue."""
    known = {prometheus_label(label) for label in metric.labels}
    if unknown := sorted(matchers.keys() - known):
        raise NotInCatalogue(f"{metric.name} has no label {', '.join(unknown)}")
    parts = [f'{label}{"=~" if "$" in value else "="}"{value}"' for label, value in matchers.items()]
    return prometheus_name(metric) + suffix + (f"{{{','.join(parts)}}}" if parts else "")


def per_second(metric: Metric, by: str = "", /, **matchers: str) -> str:
    """The rate of a counter, or of a histogram's recordings."""
    suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
    rate = f"rate({series(metric, suffix, **matchers)}[{WINDOW}])"
    return f"sum by ({by}) ({rate})" if by else f"sum({rate})"


def quantile(share: float, metric: Metric, by: str = "", /, **matchers: str) -> str:
    """A quantile over a histogram's last window, for each of `by`."""
    grouping = f"le, {by}" if by else "le"
    rate = f"rate({series(metric, '_bucket', **matchers)}[{WINDOW}])"
    return f"histogram_quantile({share}, sum by ({grouping}) ({rate}))"


def buckets(metric: Metric, /, **matchers: str) -> str:
    """A histogram's buckets over the window, for a heat map."""
    return f"sum by (le) (increase({series(metric, '_bucket', **matchers)}[{WINDOW}]))"


def busy_share(metric: Metric, by: str, /, **matchers: str) -> str:
    """Seconds spent per second: the sum of a histogram of durations, as a rate."""
    return f"sum by ({by}) (rate({series(metric, '_sum', **matchers)}[{WINDOW}]))"
