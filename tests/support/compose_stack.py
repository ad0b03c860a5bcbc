"""compose/compose.yaml as Compose reads it: anchors merged, variables filled in."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"

_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<how>:[-?])(?P<rest>[^}]*))?\})")


class VariableMissing(LookupError):
    """A `${NAME:?message}` without a value; the text is Compose's."""


@dataclass(frozen=True)
class Variable:
    """`default` is None where there must be a value."""

    name: str
    default: str | None


def variables() -> set[Variable]:
    """All that compose.yaml takes from its environment."""
    found: set[Variable] = set()
    for match in _VARIABLE.finditer((COMPOSE / "compose.yaml").read_text()):
        if match["name"] is not None:
            found.add(Variable(match["name"], match["rest"] if match["how"] == ":-" else None))
    return found


def fill_in(text: str, environ: Mapping[str, str]) -> str:
    """Compose's interpolation, as far as the file uses it."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        name, how, rest = match["name"], match["how"], match["rest"]
        if environ.get(name):
            return environ[name]
        if how == ":-":
            return rest
        raise VariableMissing(f"required variable {name} is missing a value: {rest}")

    return _VARIABLE.sub(value, text)


def load(environ: Mapping[str, str]) -> dict[str, Any]:
    """The whole document. Raises VariableMissing."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return fill_in(value, environ)
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    return filled(yaml.safe_load((COMPOSE / "compose.yaml").read_text()))


SECRETS = {name: f"{name.lower().replace('_', '-')}-of-a-test" for name in ("YARD_ADMIN_TOKEN", "YARD_INTERNAL_TOKEN")}
SECRETS |= {"YARD_METRICS_TOKEN": "metrics-token-of-a-test", "POSTGRES_PASSWORD": "p4ssw0rd"}
SECRETS |= {"GRAFANA_ADMIN_PASSWORD": "grafana", "KAFKA_CLUSTER_ID": "kWeVLcqnFGhFUR6iiDGotA"}


@cache
def stack() -> dict[str, Any]:
    return load(SECRETS)


def containers() -> dict[str, dict[str, Any]]:
    """Name → what compose.yaml says of it."""
    return stack()["services"]


def of_gpuyard() -> dict[str, dict[str, Any]]:
    """The containers of our own image that keep running."""
    found = {name: container for name, container in containers().items() if container["image"].startswith("gpuyard:")}
    del found["topics"]
    return found


def environment(name: str) -> dict[str, str]:
    return containers()[name].get("environment", {})


def networks_of(name: str) -> set[str]:
    return set(containers()[name]["networks"])


def together(one: str, other: str) -> bool:
    """Can they reach each other?"""
    return bool(networks_of(one) & networks_of(other))


def named(host: str) -> str:
    """The container that has this name on some network."""
    for name, container in containers().items():
        networks = container["networks"]
        aliases = [alias for n in networks if isinstance(networks, dict) for alias in (networks[n].get("aliases", []))]
        if host in (name, *aliases):
            return name
    raise LookupError(f"no container is called {host!r}")


def port_of(address: str) -> int:
    """Of `host:port`, `tcp://host:port/path` or `http://host:port`."""
    return int(address.rsplit(":", 1)[1].split("/", 1)[0])


def host_of(address: str) -> str:
    return address.split("://", 1)[-1].rsplit(":", 1)[0]


def configuration(path: str) -> Any:
    """A YAML or JSON file below compose/."""
    text = (COMPOSE / path).read_text()
    return json.loads(text) if path.endswith(".json") else yaml.safe_load(text)


def mounted(name: str) -> dict[str, Path | str]:
    """Path in the container → file or folder below compose/, or the name of a volume."""
    found: dict[str, Path | str] = {}
    for volume in containers()[name].get("volumes", []):
        source, target, *_ = volume.split(":")
        found[target] = (COMPOSE / source).resolve() if source.startswith(".") else source
    return found
