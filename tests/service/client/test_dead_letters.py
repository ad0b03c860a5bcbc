"""`yard dlq`, and what `ps` and `describe` say of a job that is parked."""

import json
from typing import Any

import pytest

from support.gateway_double import GatewayDouble
from support.yard_command import Yard

TOPIC = "yard.placement.decisions.v1"


def letter(offset: int, *, service: str = "billing", key: str = "local/default", **fields: Any) -> dict[str, Any]:
    return {
        "service": service, "topic": TOPIC, "partition": 0, "offset": offset, "key": key,
        "type": "yard.placement.released.v1", "value_bytes": 17, "error": None, "parked_at": "2026-01-01T00:00:00Z",
        "retry_requested_at": None, "headers": {"ce_id": f"evt-{offset}"}, "value": '{"a":"\\u001b[2J"}',
        "value_encoding": "utf-8", **fields,
    }  # fmt: skip


@pytest.fixture
def letters(gateway: GatewayDouble) -> list[dict[str, Any]]:
    parked = [
        letter(7, error="KeyError: 'alloc-1'"),
        letter(9),
        letter(3, service="admission", key="job-1", value="/wBi", value_encoding="base64", error="not JSON"),
    ]
    gateway.change(lambda state: state.dead_letters.extend(parked))
    return gateway.state.dead_letters


def test_the_list(yard: Yard, letters: list[dict[str, Any]], gateway: GatewayDouble) -> None:
    lines = yard("dlq", "list").stdout.decode().splitlines()
    assert len(lines) == 4
    assert ["billing", f"{TOPIC}/0@7", "local/default"] == lines[1].split()[:3]
    assert lines[1].endswith("KeyError: 'alloc-1'")
    assert lines[2].endswith("queued behind")
    as_json = json.loads(yard("dlq", "list", "--service", "admission", "--key", "job-1", "-o", "json").stdout)
    assert [(item["offset"], as_json["total"], as_json["unavailable"]) for item in as_json["items"]] == [(3, 1, [])]
    cut = yard("dlq", "list", "--limit", "1")
    assert len(cut.stdout.splitlines()) == 2
    assert b"there are 3" in cut.stderr
    letters.clear()
    empty = yard("dlq", "list")
    assert (empty.returncode, empty.stdout, b"nothing is parked" in empty.stderr) == (0, b"", True)


def test_a_service_that_is_away_is_named_and_the_others_are_listed(
    yard: Yard, gateway: GatewayDouble, letters: list[dict[str, Any]]
) -> None:
    gateway.change(lambda state: state.silent_services.append("billing"))
    for command in (("dlq", "list"), ("dlq", "retry", "--all")):
        answer = yard(*command)
        assert (answer.returncode, b"admission" in answer.stdout) == (3, True)
        assert b"billing: It does not answer." in answer.stderr


def test_one_is_shown_with_its_headers_and_value(yard: Yard, letters: list[dict[str, Any]]) -> None:
    text = yard("dlq", "show", "billing", f"{TOPIC}/0@7").stdout.decode()
    for part in ("KeyError: 'alloc-1'", "local/default", "ce_id", "evt-7", "1 event", '{"a":'):
        assert part in text, part
    assert "\x1b" not in text
    assert "queues behind" in yard("dlq", "show", "billing", f"{TOPIC}/0@9").stdout.decode()
    binary = yard("dlq", "show", "admission", f"{TOPIC}/0@3").stdout.decode()
    assert "base64" in binary
    assert "/wBi" in binary
    shown = json.loads(yard("dlq", "show", "billing", f"{TOPIC}/0@7", "-o", "json").stdout)
    assert shown == letters[0] | {"behind": 1}
    assert yard("dlq", "show", "billing", f"{TOPIC}/0@8").returncode == 4


@pytest.mark.parametrize("record", ["x", TOPIC, f"{TOPIC}/0", f"{TOPIC}@7", f"{TOPIC}/-1@7", f"a/b/0@{10**30}", ""])
def test_what_names_no_record_is_a_usage_error(yard: Yard, gateway: GatewayDouble, record: str) -> None:
    for command in ("show", "retry", "discard"):
        answer = yard("dlq", command, "billing", record)
        assert answer.returncode == 2, command
        assert b"TOPIC/PARTITION@OFFSET" in answer.stderr
    assert gateway.state.received == []


def test_a_key_or_everything_is_tried_again(yard: Yard, gateway: GatewayDouble, letters: list[dict[str, Any]]) -> None:
    one = yard("dlq", "retry", "billing", f"{TOPIC}/0@9").stdout.decode()
    assert one == "billing tries 2 events of local/default again\n"
    assert yard("dlq", "retry", "--all", "--service", "admission").stdout == b"admission tries 1 event again\n"
    assert "(being tried again) not JSON" in yard("dlq", "list").stdout.decode()
    assert yard("dlq", "retry", "--all").stdout.splitlines() == [
        b"billing tries 2 events again",
        b"admission tries 1 event again",
    ]
    by_key = json.loads(yard("dlq", "retry", "--all", "--key", "job-1", "-o", "json").stdout)
    assert by_key == {"items": [{"service": "admission", "records": 1}], "unavailable": []}


@pytest.mark.parametrize(
    "arguments",
    [(), ("billing",), ("--all", "billing"), ("billing", f"{TOPIC}/0@9", "--key", "a")],
    ids=["nothing", "no record", "all and one", "one and a filter"],
)
def test_what_is_to_be_tried_must_be_clear(yard: Yard, gateway: GatewayDouble, arguments: tuple[str, ...]) -> None:
    assert yard("dlq", "retry", *arguments).returncode == 2
    assert gateway.state.received == []


@pytest.mark.parametrize(("said", "code", "left"), [(b"n\n", 1, 3), (b"", 1, 3), (b"y\n", 0, 2)])
def test_discarding_says_what_is_lost_and_asks(
    yard: Yard, letters: list[dict[str, Any]], said: bytes, code: int, left: int
) -> None:
    answer = yard("dlq", "discard", "billing", f"{TOPIC}/0@7", stdin=said)
    assert (answer.returncode, len(letters)) == (code, left)
    for part in ("yard.placement.released.v1 of local/default", "lost for good", "1 event behind it will be tried"):
        assert part in answer.stderr.decode(), part
    assert (b"discarded" in answer.stdout) is (code == 0)


def test_discarding_without_being_asked(yard: Yard, gateway: GatewayDouble, letters: list[dict[str, Any]]) -> None:
    answer = yard("dlq", "discard", "--yes", "billing", f"{TOPIC}/0@7")
    assert answer.stdout.decode() == f"billing discarded {TOPIC}/0@7; 1 event behind it will be tried\n"
    assert [request.method for request in gateway.state.received] == ["DELETE"]
    assert yard("dlq", "discard", "--yes", "billing", f"{TOPIC}/0@7").returncode == 4


def test_a_parked_job_says_so_with_the_error_and_the_way_on(yard: Yard, gateway: GatewayDouble) -> None:
    parked = {
        "service": "billing", "topic": TOPIC, "partition": 0, "offset": 7, "error": "KeyError: 'alloc-1'",
        "since": "2026-01-01T00:00:00Z", "records": 3,
    }  # fmt: skip
    job = gateway.add("train", parked=parked)
    gateway.running(job)
    gateway.add("other", parked=None)
    listed = yard("ps").stdout.decode().splitlines()
    [line] = [line for line in listed if job in line]
    assert "running, parked" in line
    assert "billing cannot handle an event about it: KeyError: 'alloc-1' (and 2 more)" in line
    assert sum("parked" in line for line in listed) == 1
    text = yard("describe", job).stdout.decode()
    assert "cannot handle an event about it: KeyError: 'alloc-1'" in text
    assert f"yard dlq show billing {TOPIC}/0@7" in text
