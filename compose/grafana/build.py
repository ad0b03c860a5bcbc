"""Writes the dashboards and the alerts, whose source are the modules in `boards`.

python compose/grafana/build.py [DIR]    into compose/, or into another folder of the same form
"""

import json
import sys
from pathlib import Path

import yaml
from boards.alerts import rule_file
from boards.fleet import FLEET
from boards.panels import build
from boards.pipeline import PIPELINE
from boards.queues import QUEUES
from boards.scheduler import SCHEDULER

_COMPOSE = Path(__file__).resolve().parent.parent
_HEADER = "# Written by `make dashboards` from grafana/boards/alerts.py: change that, not this.\n"


def files() -> dict[str, str]:
    """Path below compose/ → text."""
    found = {"prometheus/alerts.yaml": _HEADER + yaml.safe_dump(rule_file(), sort_keys=False, width=1000)}
    for board in (FLEET, QUEUES, SCHEDULER, PIPELINE):
        text = json.dumps(build(board), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        found[f"grafana/dashboards/{board.uid.removeprefix('gpuyard-')}.json"] = text
    return found


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else _COMPOSE
    for path, text in files().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for left in sorted({path.name for path in (folder / "grafana/dashboards").glob("*.json")}):
        if f"grafana/dashboards/{left}" not in files():
            (folder / "grafana/dashboards" / left).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
