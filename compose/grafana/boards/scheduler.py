"""The cycles of admission, placement and inventory, and what they decide."""

from boards.panels import Board, Section, Variable, graph, number, quantiles
from boards.promql import RATE, legend, quantile, rate, series
from yard_obs.catalogue import CYCLE_DURATION, DECISIONS, SERVICE_ACTIVE

CYCLE_LIMIT_SECONDS = 1.0
_LIMITS = {CYCLE_LIMIT_SECONDS / 2: "orange", CYCLE_LIMIT_SECONDS: "red"}


def _cycles_per_second() -> str:
    """Cycles a second by service: as many as its most frequent phase has, since some phases are not in every cycle."""
    return f"max by (service) ({rate(CYCLE_DURATION, 'service', 'phase', service='$service')})"


def _whole_cycle() -> str:
    spent = f"sum by (service) (rate({series(CYCLE_DURATION, '_sum', service='$service')}[{RATE}]))"
    return f"{spent} / {_cycles_per_second()}"


def _cycles() -> Section:
    return Section(
        "Cycles",
        [
            graph(
                "Mean duration of a cycle, by service",
                "All phases of a cycle together.",
                [(_whole_cycle(), legend("service"))],
                unit="s",
                limits=_LIMITS,
            ),
            graph(
                "Cycles per second, by service",
                "Each is one transaction.",
                [(_cycles_per_second(), legend("service"))],
                unit="ops",
            ),
            graph(
                "Duration p95 by service and phase",
                "An alert fires when a phase stays above 1 s.",
                [
                    (
                        quantile(0.95, CYCLE_DURATION, "service", "phase", service="$service"),
                        legend("service", "phase"),
                    )
                ],
                unit="s",
                limits=_LIMITS,
            ),
            quantiles(
                "Duration of a phase, by service",
                "Over all phases.",
                CYCLE_DURATION,
                "service",
                service="$service",
            ),
            graph(
                "Share of time spent, by service and phase",
                "1: the service does nothing else, and more work makes it late.",
                [
                    (
                        f"sum by (service, phase) (rate({series(CYCLE_DURATION, '_sum', service='$service')}[{RATE}]))",
                        legend("service", "phase"),
                    )
                ],
                unit="percentunit",
                width=24,
                stacked=True,
                limits={0.8: "red"},
            ),
        ],
    )


def _decisions() -> Section:
    return Section(
        "Decisions",
        [
            graph(
                "Decisions per second, by outcome",
                "What admission and placement decided.",
                [(rate(DECISIONS, "outcome"), legend("outcome"))],
                unit="ops",
                stacked=True,
            ),
            graph(
                "Decisions per second, by outcome and reason",
                "The reasons are those that `yard describe` explains.",
                [(rate(DECISIONS, "outcome", "reason"), legend("outcome", "reason"))],
                unit="ops",
            ),
        ],
    )


def _instances() -> Section:
    return Section(
        "Instances",
        [
            number(
                "Services with an active instance",
                "Each service has one active instance; others stand by.",
                f"count({_active()} > 0)",
                width=6,
            ),
            number(
                "Services without one",
                "Their events wait in the outbox and on the bus until an instance takes over.",
                f"count({_active()} < 1) or vector(0)",
                width=6,
                limits={1: "red"},
            ),
            graph(
                "Active instances, by service",
                "1 is right. 0: nobody does its work. 2 for a moment: the earlier one has not noticed yet that it is "
                "fenced, and its commits are refused.",
                [(_active(), legend("service"))],
                width=12,
                limits={2: "orange"},
            ),
        ],
    )


def _active() -> str:
    """Counts instances, so that two of one service are seen."""
    return f"sum by (service) ({series(SERVICE_ACTIVE, service='$service')})"


SCHEDULER = Board(
    uid="gpuyard-scheduler",
    title="gpuyard: scheduler cycle",
    description="How long the cycles of admission, placement and inventory take, what they decide, and who runs them.",
    traces='{ kind = producer && span.messaging.destination.name =~ "yard\\\\..*decisions.*" }',
    variables=[Variable("service", "Service", SERVICE_ACTIVE, "service")],
    sections=[_instances(), _cycles(), _decisions()],
)
