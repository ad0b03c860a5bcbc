"""Prometheus's own tool reads what the container is given."""

import json
import shutil
import subprocess
from pathlib import Path

from support.compose_stack import COMPOSE, mounted, of_gpuyard


def test_promtool_takes_the_configuration_with_its_rules(tmp_path: Path) -> None:
    """The container's paths become those of a folder that has what the container has there."""
    text = (COMPOSE / "prometheus/prometheus.yaml").read_text()
    assert "/run/gpuyard/" in text
    for folder in ("/etc/prometheus", "/run/gpuyard"):
        text = text.replace(folder, str(tmp_path))
    for target, source in mounted("prometheus").items():
        if not isinstance(source, str):
            shutil.copy(source, tmp_path / target.rpartition("/")[2])
    (tmp_path / "metrics.token").write_text("token")
    (tmp_path / "prometheus.yaml").write_text(text)
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True, timeout=30
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rule files found" in checked.stdout


def test_a_container_that_is_gone_is_told_by_name_and_one_that_is_down_is_not(tmp_path: Path) -> None:
    gone = "agent-2"
    up = {name: "0x10" if name == "billing" else "1x10" for name in of_gpuyard() if name != gone}
    told = {"alertname": "YardContainerGone", "job": "gpuyard", "severity": "critical", "target": gone}
    annotations = {
        "summary": f"There is no container {gone}",
        "description": f"No container of this name runs, so nothing does the work of {gone}.",
        "runbook_url": "compose/README.md#yardcontainergone",
    }
    case = {
        "interval": "1m",
        "input_series": [
            {"series": f'up{{job="gpuyard",target="{name}",instance="10.0.0.2:7000"}}', "values": values}
            for name, values in up.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "2m",
                "alertname": "YardContainerGone",
                "exp_alerts": [{"exp_labels": told, "exp_annotations": annotations}],
            }
        ],
    }
    document = {"rule_files": [str(COMPOSE / "prometheus/stack.yaml")], "tests": [case]}
    (tmp_path / "cases.json").write_text(json.dumps(document))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "cases.json")], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr
