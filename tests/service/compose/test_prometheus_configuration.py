"""Prometheus's own tool reads what the container is given."""

import shutil
import subprocess
from pathlib import Path

from support.compose_stack import COMPOSE, mounted


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
    assert "1 rule files found" in checked.stdout
