"""Events on their way: outbox, relay, bus, consumers."""

from boards.panels import Board, Section, Variable, graph, number, quantiles
from boards.promql import gauge, legend, mean, quantile, rate
from yard_obs.catalogue import (
    BATCH_SIZE,
    CONSUMER_LAG,
    HANDLER_DURATION,
    OUTBOX_OLDEST_AGE,
    OUTBOX_SIZE,
    PARKED,
    PUBLISH_DURATION,
    RELAY_EVENTS,
    STOPPED,
)

LAG_LIMIT = 1000
OUTBOX_AGE_LIMIT_SECONDS = 60
_CHOSEN = {"service": "$service"}


def _now() -> Section:
    return Section(
        "Now",
        [
            number(
                "Stopped partitions",
                "Partitions that cannot go on without people.",
                gauge(STOPPED, **_CHOSEN),
                width=6,
                limits={1: "red"},
            ),
            number(
                "Parked events",
                "Events that failed for good, and those of their keys behind them: `yard dlq list`.",
                gauge(PARKED, **_CHOSEN),
                width=6,
                limits={1: "red"},
            ),
            number(
                "Lag",
                "Events that are on the bus and that their services have not consumed yet.",
                gauge(CONSUMER_LAG, **_CHOSEN),
                width=6,
                limits={LAG_LIMIT: "orange"},
            ),
            number(
                "Oldest event in an outbox",
                "How long the bus has not been reached: events wait in the outbox, none is lost.",
                f"max({gauge(OUTBOX_OLDEST_AGE, 'service', **_CHOSEN)})",
                unit="s",
                width=6,
                limits={10: "orange", OUTBOX_AGE_LIMIT_SECONDS: "red"},
            ),
        ],
    )


def _sending() -> Section:
    return Section(
        "Outbox and relay",
        [
            graph(
                "Events in the outbox, by service",
                "Committed and not on the bus yet.",
                [(gauge(OUTBOX_SIZE, "service", **_CHOSEN), legend("service"))],
            ),
            graph(
                "Age of the oldest event in the outbox, by service",
                "An alert fires above a minute.",
                [(gauge(OUTBOX_OLDEST_AGE, "service", **_CHOSEN), legend("service"))],
                unit="s",
                limits={OUTBOX_AGE_LIMIT_SECONDS: "red"},
            ),
            graph(
                "Events published per second, by service and topic",
                "What the relay brought from the outbox to the bus.",
                [(rate(RELAY_EVENTS, "service", "topic", **_CHOSEN), legend("service", "topic"))],
                unit="ops",
            ),
            quantiles(
                "Duration of a publishing transaction, by service",
                "From the relay's first record to the broker's commit.",
                PUBLISH_DURATION,
                "service",
                **_CHOSEN,
            ),
        ],
    )


def _consuming() -> Section:
    by, names = ("service", "topic"), legend("service", "topic")
    return Section(
        "Consumers",
        [
            graph(
                "Lag by service and topic",
                "Events that the service has not consumed yet. An alert fires above 1000 that do not become fewer.",
                [(gauge(CONSUMER_LAG, *by, **_CHOSEN), names)],
                limits={LAG_LIMIT: "orange"},
            ),
            graph(
                "Batches per second, by service and topic",
                "Each is one transaction.",
                [(rate(BATCH_SIZE, *by, **_CHOSEN), names)],
                unit="ops",
            ),
            graph(
                "Duration of a batch p95, by service and topic",
                "From its first statement to its commit.",
                [(quantile(0.95, HANDLER_DURATION, *by, **_CHOSEN), names)],
                unit="s",
            ),
            graph(
                "Mean size of a batch, by service and topic",
                "Grows with the lag, as it should: one commit for more events.",
                [(mean(BATCH_SIZE, *by, **_CHOSEN), names)],
            ),
        ],
    )


def _held() -> Section:
    by, names = ("service", "topic"), legend("service", "topic")
    return Section(
        "What waits for people",
        [
            graph(
                "Parked events, by service and topic",
                "`yard dlq list`, then `yard dlq retry` or `yard dlq discard`.",
                [(gauge(PARKED, *by, **_CHOSEN), names)],
                limits={1: "red"},
            ),
            graph(
                "Stopped partitions, by service",
                "/readyz of the service's process says which and why.",
                [(gauge(STOPPED, "service", **_CHOSEN), legend("service"))],
                limits={1: "red"},
            ),
        ],
    )


PIPELINE = Board(
    uid="gpuyard-pipeline",
    title="gpuyard: event pipeline",
    description="Events from the outbox over the bus to their consumers: how many, how late, and what is stuck.",
    traces="{ kind = consumer }",
    variables=[Variable("service", "Service", CONSUMER_LAG, "service")],
    sections=[_now(), _sending(), _consuming(), _held()],
)
