"""What a follower of events asks for, and how it is let in."""

import ssl
import subprocess
import sys
from typing import Any

import pytest

from yard_client.events import EventConsumer, FileCheckpoint, KafkaSecurity
from yard_client.events.selection import select
from yard_events.registry import JOBS_EVENTS, NODES_EVENTS
from yard_events.types import JobFailed, JobRunning, TaskExited


def chosen(**options: Any) -> Any:
    return select(**{"topics": None, "types": None, "projects": None, "queues": None} | options)


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({}, (JOBS_EVENTS,)),
        ({"types": [JobRunning, JobFailed]}, (JOBS_EVENTS,)),
        ({"types": [TaskExited, "yard.jobs.running.v1"]}, (JOBS_EVENTS, NODES_EVENTS)),
        ({"topics": [NODES_EVENTS, NODES_EVENTS], "types": ["yard.future.v1"]}, (NODES_EVENTS,)),
    ],
)
def test_topics_follow_from_types(options: dict[str, Any], topics: tuple[str, ...]) -> None:
    assert chosen(**options).topics == topics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": ["yard.jobs.runing.v1"]}, r"yard\.jobs\.runing\.v1 is not known .* yard\.jobs\.running\.v1"),
        ({"types": "yard.jobs.running.v1"}, "types must be a collection"),
        ({"projects": "nlp"}, r"projects must be a collection, for example \['nlp'\]"),
        ({"topics": []}, "no topics"),
        ({"types": []}, "no topics"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(**options)


def test_positions_are_kept_in_one_place() -> None:
    with pytest.raises(ValueError, match="not by both"):
        EventConsumer("localhost:9092", group="g", state=FileCheckpoint("positions.json"))


def test_security_is_taken_from_the_environment_of_gpuyards_own_services() -> None:
    environment = {
        "YARD_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "YARD_KAFKA_SASL_MECHANISM": "PLAIN",
        "YARD_KAFKA_USERNAME": "reader",
        "YARD_KAFKA_PASSWORD": "secret",
    }
    security = KafkaSecurity.from_environment(environment)
    arguments = security.arguments()
    assert isinstance(arguments.pop("ssl_context"), ssl.SSLContext)
    assert arguments == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "reader",
        "sasl_plain_password": "secret",
    }
    assert "secret" not in repr(security)
    assert KafkaSecurity.from_environment({}).arguments() == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"protocol": "TLS"}, "protocol must be"), ({"protocol": "SASL_SSL", "username": "u"}, "username and a password")],
)
def test_security_that_cannot_work_is_refused_before_connecting(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaSecurity(**options)  # type: ignore[arg-type]


def test_a_certificate_that_is_not_there_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError):
        KafkaSecurity("SSL", ca_file=tmp_path / "ca.pem").arguments()


def test_without_aiokafka_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['aiokafka'] = None; import yard_client.events"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "pip install 'gpuyard[events]'" in ended.stderr.splitlines()[-1]


def test_the_command_line_does_without_it() -> None:
    code = "import sys; sys.modules['aiokafka'] = None; import yard_client.cli.main, yard_client.aio"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
