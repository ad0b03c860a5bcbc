"""What goes wrong between the client and a server: sentences and exit codes, never a traceback."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.gateway_double import TOKEN, GatewayDouble
from support.yard_command import COMMAND, Yard
from yard_runtime.http import Problem

UNAVAILABLE = Problem(503, "Service unavailable", "PostgreSQL is away.", headers={"Retry-After": "0"})


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (Problem(403, "Forbidden", "A viewer may not do this."), 4, "A viewer may not do this."),
        (Problem(404, "Not found", "There is no such thing."), 4, "There is no such thing."),
        (Problem(500, "Internal error", "It broke."), 3, "It broke."),
    ],
)
def test_answers_that_are_no_answer(yard: Yard, gateway: GatewayDouble, fault: Problem, code: int, said: str) -> None:
    gateway.state.faults = [("/v1/jobs", fault)]
    result = yard("ps")
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_a_bad_token(yard: Yard) -> None:
    result = yard.process("ps", YARD_TOKEN="wrong")
    assert (result.returncode, "token is not valid" in result.stderr.decode()) == (4, True)


def test_nothing_listens(unconfigured: Yard) -> None:
    result = unconfigured.process("ps", YARD_URL="http://127.0.0.1:1", YARD_TOKEN="t", YARD_RETRY_SECONDS="0.3")
    assert result.returncode == 3
    assert "http://127.0.0.1:1: connection refused" in result.stderr.decode()
    assert "make up" in result.stderr.decode()


def test_not_a_gpuyard(unconfigured: Yard, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout
        port = server.stdout.readline().split(b"port ")[1].split()[0].decode()
        result = unconfigured("me", YARD_URL=f"http://127.0.0.1:{port}", YARD_TOKEN="t")
        server.terminate()
    assert result.returncode == 3
    assert "is the URL that of a gpuyard gateway?" in result.stderr.decode()


def test_a_server_that_is_briefly_unavailable_is_asked_again(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.state.faults = [("/v1/jobs", UNAVAILABLE)] * 2
    assert yard("ps").returncode == 0
    assert len(gateway.state.received) == 3


def test_a_server_that_stays_unavailable_is_given_up(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.state.faults = [("/v1/jobs", UNAVAILABLE)] * 50
    result = yard("ps", YARD_RETRY_SECONDS="0.3")
    assert (result.returncode, "PostgreSQL is away" in result.stderr.decode()) == (3, True)


def test_a_lost_answer_to_a_submission_makes_no_second_job(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.state.faults = [("/v1/jobs", "break")]
    result = yard("run", "--", "true")
    assert (result.returncode, result.stdout.decode().split()) == (0, list(gateway.state.jobs))
    assert len(gateway.state.jobs) == 1
    assert len({request.headers["idempotency-key"] for request in gateway.state.received}) == 1


def test_a_lost_answer_to_a_new_token_is_not_asked_for_again(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.state.faults = [("/v1/tokens", "break")]
    assert yard("tokens", "create", "ci").returncode == 3
    assert len(gateway.state.tokens) == 1


def test_no_configuration_says_what_to_do(unconfigured: Yard) -> None:
    result = unconfigured.process("ps")
    assert result.returncode == 2
    said = result.stderr.decode()
    assert all(part in said for part in ("client.toml does not exist", "make up", "YARD_URL", "YARD_TOKEN"))


def test_the_file_configures_and_open_permissions_are_told(
    unconfigured: Yard, gateway: GatewayDouble, tmp_path: Path
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'url = "{gateway.url}"\ntoken = "{TOKEN}"\n')
    file.chmod(0o600)
    assert unconfigured("me", YARD_CONFIG=str(file)).stderr == b""
    file.chmod(0o644)
    warned = unconfigured("me", "-o", "json", YARD_CONFIG=str(file))
    assert json.loads(warned.stdout)["name"] == "alice"
    assert f"chmod 600 {file}" in warned.stderr.decode()


def test_config_show_masks_the_token(yard: Yard, gateway: GatewayDouble) -> None:
    for output in ("table", "json"):
        shown = yard("config", "show", "-o", output).stdout.decode()
        assert gateway.url in shown
        assert "environment YARD_URL" in shown
        assert TOKEN not in shown


def test_proxies_of_the_environment_do_not_stand_before_loopback(yard: Yard) -> None:
    assert yard("me", HTTP_PROXY="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1").returncode == 0


@pytest.mark.parametrize("command", ["ps", "run", "submit", "nodes", "tokens", "queues", "events", "usage"])
def test_every_help_has_examples(unconfigured: Yard, command: str) -> None:
    leaf = {"tokens": ["tokens", "create"]}.get(command, [command])
    result = unconfigured(*leaf, "--help")
    assert (result.returncode, result.stderr) == (0, b"")
    assert "Example" in result.stdout.decode()
    assert f"yard {' '.join(leaf)}" in result.stdout.decode()


@pytest.mark.parametrize(
    "arguments", [["nope"], ["ps", "--nope"], ["ps", "-o", "xml"], ["run"], ["submit", "/no/file"]]
)
def test_usage_errors(yard: Yard, arguments: list[str]) -> None:
    result = yard(*arguments)
    assert (result.returncode, result.stdout) == (2, b"")
    assert "Traceback" not in result.stderr.decode()


def on_a_terminal(yard: Yard, *arguments: str, **environment: str) -> bytes:
    """What a command writes when its stdout is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        env={**yard.environment, "TERM": "xterm-256color", **environment},
    ):  # fmt: skip
        os.close(theirs)
        output = b""
        try:
            while chunk := os.read(ours, 4096):
                output += chunk
        except OSError:  # the terminal's other side is closed
            pass
    os.close(ours)
    return output


def test_colour_is_for_terminals_and_no_color_is_respected(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.running(gateway.add())
    assert b"\x1b[32mrunning" in on_a_terminal(yard, "ps")
    assert b"\x1b[3" not in on_a_terminal(yard, "ps", NO_COLOR="1")
    assert b"\x1b" not in yard("ps").stdout


def test_the_shell_completes_jobs_and_a_silent_server_offers_nothing(yard: Yard, gateway: GatewayDouble) -> None:
    gateway.add("train-a")
    asked = {"_YARD_COMPLETE": "complete_bash", "COMP_WORDS": "yard describe tra", "COMP_CWORD": "2"}
    assert b"train-a" in yard.process(**asked).stdout
    nothing = yard.process(**asked, YARD_URL="http://127.0.0.1:1")
    assert (nothing.stdout.strip(), b"Traceback" in nothing.stderr) == (b"", False)
