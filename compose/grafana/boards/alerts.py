"""When people are called, and where they read on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from boards.pipeline import LAG_LIMIT, OUTBOX_AGE_LIMIT_SECONDS
from boards.promql import gauge, quantile, series
from boards.scheduler import CYCLE_LIMIT_SECONDS
from yard_obs.catalogue import (
    CONSUMER_LAG,
    CYCLE_DURATION,
    NODE_COUNT,
    OUTBOX_OLDEST_AGE,
    PARKED,
    SERVICE_ACTIVE,
    STOPPED,
)

RUNBOOKS = "docs/operations.md"
ACTIVE_SERVICES = ("admission", "billing", "inventory", "placement")
"""Those of whose instances one does the work; of the others every instance does."""


@dataclass(frozen=True)
class Alert:
    """`severity`: critical when work stands still, warning when it may soon. `patience`: how long, before it fires."""

    name: str
    severity: str
    patience: str
    query: str
    summary: str
    description: str

    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = {"alert": self.name, "expr": self.query}
        if self.patience:
            rule["for"] = self.patience
        annotations = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": f"{RUNBOOKS}#{self.name.lower()}",
        }
        return {**rule, "labels": {"severity": self.severity}, "annotations": annotations}


def _pipeline() -> list[Alert]:
    lag = gauge(CONSUMER_LAG, "service", "topic")
    before = gauge(CONSUMER_LAG, "service", "topic").replace(series(CONSUMER_LAG), f"{series(CONSUMER_LAG)} offset 5m")
    return [
        Alert(
            "YardOutboxNotEmptied",
            "critical",
            "1m",
            f"{gauge(OUTBOX_OLDEST_AGE, 'service')} > {OUTBOX_AGE_LIMIT_SECONDS}",
            "Events of {{ $labels.service }} do not reach the bus",
            "The oldest event in the outbox of {{ $labels.service }} is {{ $value | humanizeDuration }} old.",
        ),
        Alert(
            "YardConsumerLag",
            "warning",
            "5m",
            f"({lag} > {LAG_LIMIT}) and ({lag} >= {before})",
            "{{ $labels.service }} falls behind on {{ $labels.topic }}",
            "{{ $value }} events of {{ $labels.topic }} wait for {{ $labels.service }}, no fewer than 5 minutes ago.",
        ),
        Alert(
            "YardPartitionStopped",
            "critical",
            "",
            f"{gauge(STOPPED, 'service')} > 0",
            "A partition of {{ $labels.service }} has stopped",
            "{{ $labels.service }} cannot go on in {{ $value }} partitions until people have looked at it.",
        ),
        Alert(
            "YardEventsParked",
            "warning",
            "5m",
            f"{gauge(PARKED, 'service', 'topic')} > 0",
            "{{ $labels.service }} has parked events of {{ $labels.topic }}",
            "{{ $value }} events of {{ $labels.topic }} failed in {{ $labels.service }}, or wait behind one that did.",
        ),
    ]


def _scheduling() -> list[Alert]:
    slow = quantile(0.95, CYCLE_DURATION, "service", "phase", window="5m")
    absent = [f"absent({series(SERVICE_ACTIVE, service=name)})" for name in ACTIVE_SERVICES]
    idle = f"sum by (service) ({series(SERVICE_ACTIVE)}) < 1"
    return [
        Alert(
            "YardNodeLost",
            "critical",
            "",
            f"{gauge(NODE_COUNT, state='lost')} > 0",
            "Nodes are lost",
            "{{ $value }} nodes have been silent for so long that what ran there was given up.",
        ),
        Alert(
            "YardCycleSlow",
            "warning",
            "5m",
            f"{slow} > {CYCLE_LIMIT_SECONDS:g}",
            "The cycle of {{ $labels.service }} is slow",
            "Phase {{ $labels.phase }} of {{ $labels.service }} takes {{ $value | humanizeDuration }} (p95).",
        ),
        Alert(
            "YardServiceInactive",
            "critical",
            "1m",
            " or ".join([f"({idle})", *absent]),
            "No instance of {{ $labels.service }} is active",
            "No instance does the work of {{ $labels.service }}: its events wait on the bus.",
        ),
        Alert(
            "YardTargetDown",
            "critical",
            "1m",
            "up == 0",
            "{{ with $labels.target }}{{ . }}{{ else }}{{ $labels.job }}{{ end }} does not answer Prometheus",
            "Prometheus gets no metrics from {{ $labels.instance }} (job {{ $labels.job }}).",
        ),
    ]


def rule_file() -> dict[str, Any]:
    groups: Sequence[tuple[str, list[Alert]]] = [("gpuyard pipeline", _pipeline()), ("gpuyard service", _scheduling())]
    return {"groups": [{"name": name, "rules": [alert.rule() for alert in alerts]} for name, alerts in groups]}
