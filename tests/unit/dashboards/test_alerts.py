"""promtool (Debian's package `prometheus`) says of each alert when it fires and when it does not."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.dashboards import ALERTS, alerts

SERVICES = ("admission", "billing", "inventory", "placement")
LAG = 'yard_consumer_lag{service="placement",topic="t",partition="0",instance="a"}'
CYCLE = 'yard_scheduler_cycle_duration_seconds_bucket{service="placement",phase="place",le="%s"}'


@dataclass(frozen=True)
class Case:
    """`series`: as promtool writes values, one a minute. `fires`: at minute `at`, with these labels, once each."""

    what: str
    alert: str
    series: dict[str, str]
    at: int
    fires: list[dict[str, str]] = field(default_factory=list)


def _active(**values: str) -> dict[str, str]:
    """All services with an active instance, but those that `values` names."""
    return {
        f'yard_service_active{{service="{name}",instance="{name}-1"}}': values.get(name, "1x20")
        for name in SERVICES
        if values.get(name) != "never"
    }


AGE = 'yard_outbox_oldest_age_seconds{service="admission"}'
STOPPED = 'yard_consumer_stopped{service="billing"}'
CASES = [
    Case("for a minute", "YardOutboxNotEmptied", {AGE: "61x10"}, 2, [{"service": "admission"}]),
    Case("not for a minute yet", "YardOutboxNotEmptied", {AGE: "0 0 61x10"}, 2),
    Case("a minute at most", "YardOutboxNotEmptied", {AGE: "60x10"}, 5),
    Case("large and rising", "YardConsumerLag", {LAG: "1000+10x30"}, 12, [{"service": "placement", "topic": "t"}]),
    Case("large and constant", "YardConsumerLag", {LAG: "5000x30"}, 12, [{"service": "placement", "topic": "t"}]),
    Case("large and falling", "YardConsumerLag", {LAG: "90000-10x30"}, 12),
    Case("small and rising", "YardConsumerLag", {LAG: "0+10x30"}, 12),
    Case(
        "partitions are one topic's",
        "YardConsumerLag",
        {LAG: "600x30", LAG.replace('partition="0"', 'partition="1"'): "600x30"},
        12,
        [{"service": "placement", "topic": "t"}],
    ),
    Case(
        "two instances that show the same partition count once",
        "YardConsumerLag",
        {LAG: "600x30", LAG.replace('instance="a"', 'instance="b"'): "600x30"},
        12,
    ),
    Case(
        "one", "YardPartitionStopped", {'yard_consumer_stopped{service="billing"}': "1x5"}, 1, [{"service": "billing"}]
    ),
    Case("none", "YardPartitionStopped", {'yard_consumer_stopped{service="billing"}': "0x5"}, 1),
    Case(
        "five minutes",
        "YardEventsParked",
        {'yard_consumer_parked{service="billing",topic="t"}': "2x10"},
        6,
        [{"service": "billing", "topic": "t"}],
    ),
    Case("retried in time", "YardEventsParked", {'yard_consumer_parked{service="billing",topic="t"}': "2 2 2 0x10"}, 6),
    Case("a node", "YardNodeLost", {'yard_node_count{state="lost"}': "1x5"}, 1, [{}]),
    Case("ready ones", "YardNodeLost", {'yard_node_count{state="ready"}': "9x5"}, 1),
    Case(
        "slow",
        "YardCycleSlow",
        {CYCLE % "1.0": "0x20", CYCLE % "2.5": "0+60x20", CYCLE % "+Inf": "0+60x20"},
        12,
        [{"service": "placement", "phase": "place"}],
    ),
    Case("quick", "YardCycleSlow", {CYCLE % "1.0": "0+60x20", CYCLE % "+Inf": "0+60x20"}, 12),
    Case("nothing recorded", "YardCycleSlow", {CYCLE % "1.0": "5x20", CYCLE % "+Inf": "5x20"}, 12),
    Case("all active", "YardServiceInactive", _active(), 5),
    Case("one is not", "YardServiceInactive", _active(billing="0x20"), 5, [{"service": "billing"}]),
    Case("one never came", "YardServiceInactive", _active(placement="never"), 5, [{"service": "placement"}]),
    Case("one went away", "YardServiceInactive", _active(admission="1 1 stale"), 5, [{"service": "admission"}]),
    Case(
        "another instance stands by",
        "YardServiceInactive",
        {**_active(), 'yard_service_active{service="billing",instance="billing-2"}': "0x20"},
        5,
    ),
    Case("down", "YardTargetDown", {'up{job="gpuyard",instance="a"}': "0x5"}, 2, [{"job": "gpuyard", "instance": "a"}]),
    Case("up", "YardTargetDown", {'up{job="gpuyard",instance="a"}': "1x5"}, 2),
]


def _promtool(*arguments: object) -> None:
    program = shutil.which("promtool")
    assert program is not None, "no `promtool` in PATH: apt-get install --no-install-recommends prometheus"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _expected(case: Case) -> list[dict[str, object]]:
    """Labels only: what an alert says, its own test reads."""
    [rule] = [rule for rule in alerts() if rule["alert"] == case.alert]
    return [{"exp_labels": {**labels, **rule["labels"]}} for labels in case.fires]


def _without_annotations(folder: Path) -> Path:
    """promtool compares all of an alert; the words are of no interest here."""
    rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in alerts()]
    path = folder / "rules.json"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "alerts", "rules": rules}]}))
    return path


def test_promtool_accepts_the_rules() -> None:
    _promtool("check", "rules", ALERTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.what}")
def test_an_alert_fires_when_it_should(case: Case, tmp_path: Path) -> None:
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [{"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": _expected(case)}],
    }
    path = tmp_path / "test.json"
    rules = _without_annotations(tmp_path)
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    _promtool("test", "rules", path)


def test_every_alert_is_tried_both_ways() -> None:
    names = {rule["alert"] for rule in alerts()}
    assert {case.alert for case in CASES if case.fires} == names
    assert {case.alert for case in CASES if not case.fires} == names
