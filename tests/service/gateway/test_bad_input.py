"""Bad input over real HTTP: the right status, the field named, nothing stored, and the gateway still serves.

Each test sends a whole table of cases to one gateway and lists those that were answered wrongly.
"""

import json
from typing import Any

from sqlalchemy import text

from support.gateway import ADMIN_TOKEN, Gateway, document, fields_of, raw_exchange
from support.log import events_of
from yard_events.registry import JOBS_REQUESTS

JSON = "application/json"
YAML = "application/yaml"


def with_run(**run: Any) -> bytes:
    return json.dumps(document(run={"command": ["true"]} | run)).encode()


def but(**fields: Any) -> bytes:
    return json.dumps(document(**fields)).encode()


FIELDS: dict[str, tuple[bytes, str]] = {
    "no name": (b'{"run": {"command": ["true"]}}', "name"),
    "no run": (b'{"name": "train"}', "run"),
    "name: upper case": (but(name="Train"), "name"),
    "name: path": (but(name="../../etc/passwd"), "name"),
    "name: dots": (but(name="a..b"), "name"),
    "name: slash": (but(name="a/b"), "name"),
    "name: empty": (but(name=""), "name"),
    "name: too long": (but(name="a" * 64), "name"),
    "name: a number": (but(name=7), "name"),
    "name: null": (but(name=None), "name"),
    "project: path": (but(project="../vision"), "project"),
    "queue: path": (but(queue="a/../b"), "queue"),
    "tier: unknown": (but(tier="gold"), "tier"),
    "priority: text": (but(priority="1"), "priority"),
    "priority: too high": (but(priority=1001), "priority"),
    "priority: overflow": (but(priority=2**70), "priority"),
    "unknown field": (but(gpus=4), "gpus"),
    "unknown field of a section": (but(tasks={"gpu": 4}), "tasks.gpu"),
    "later field": (but(budget="x"), "budget"),
    "count: zero": (but(tasks={"count": 0}), "tasks.count"),
    "count: overflow": (but(tasks={"count": 10**30}), "tasks.count"),
    "gpus: negative": (but(tasks={"gpus": -1}), "tasks.gpus"),
    "gpus: fraction": (but(tasks={"gpus": 0.5}), "tasks.gpus"),
    "gpus: true": (but(tasks={"gpus": True}), "tasks.gpus"),
    "gpu_models: text": (but(tasks={"gpu_models": "H100"}), "tasks.gpu_models"),
    "cpus: zero": (but(tasks={"cpus": 0}), "tasks.cpus"),
    "cpus: list": (but(tasks={"cpus": [1]}), "tasks.cpus"),
    "memory: no unit known": (but(tasks={"memory": "1 potato"}), "tasks.memory"),
    "memory: negative": (but(tasks={"memory": -1}), "tasks.memory"),
    "memory: fraction": (but(tasks={"memory": 1.5}), "tasks.memory"),
    "memory: object": (but(tasks={"memory": {}}), "tasks.memory"),
    "memory: overflow": (but(tasks={"memory": "9" * 40 + "TiB"}), "tasks.memory"),
    "run time: zero": (but(limits={"max_run_time": 0}), "limits.max_run_time"),
    "run time: list": (but(limits={"max_run_time": ["1h"]}), "limits.max_run_time"),
    "run time: nonsense": (but(limits={"max_run_time": "soon"}), "limits.max_run_time"),
    "run time: too long": (but(limits={"max_run_time": "367d"}), "limits.max_run_time"),
    "attempts: zero": (but(retry={"max_attempts": 0}), "retry.max_attempts"),
    "command: text": (with_run(command="true"), "run.command"),
    "command: empty": (with_run(command=[]), "run.command"),
    "command: no program": (with_run(command=[""]), "run.command"),
    "command: a number": (with_run(command=["sleep", 1]), "run.command.1"),
    "env: a number": (with_run(env={"EPOCHS": 3}), "run.env.EPOCHS"),
    "env: reserved": (with_run(env={"YARD_JOB_ID": "x"}), "run.env.YARD_JOB_ID.[key]"),
    "env: bad name": (with_run(env={"A=B": "x"}), "run.env.A=B.[key]"),
    "workdir: relative": (with_run(workdir="data"), "run.workdir"),
    "workdir: dots": (with_run(workdir="/data/../../etc"), "run.workdir"),
    "labels: a list": (but(labels=["a"]), "labels"),
    "labels: a number": (but(labels={"epoch": 3}), "labels.epoch"),
    "labels: too many": (but(labels={f"l{n}": "x" for n in range(65)}), "labels"),
}

DOCUMENTS: dict[str, tuple[str, bytes]] = {
    "empty": (JSON, b""),
    "cut off": (JSON, b'{"name": "train"'),
    "a list": (JSON, b"[]"),
    "a text": (JSON, b'"train"'),
    "null": (JSON, b"null"),
    "two documents": (JSON, b"{} {}"),
    "duplicate key": (JSON, b'{"name": "a", "name": "b", "run": {"command": ["true"]}}'),
    "duplicate key inside": (JSON, b'{"name": "a", "run": {"command": ["true"], "command": ["rm"]}}'),
    "NaN": (JSON, b'{"name": "a", "priority": NaN}'),
    "Infinity": (JSON, b'{"name": "a", "priority": -Infinity}'),
    "a float too large": (JSON, b'{"name": "a", "priority": 1e999}'),
    "an integer too large": (JSON, b'{"name": "a", "priority": ' + b"9" * 5000 + b"}"),
    "too deep": (JSON, b'{"name": ' + b"[" * 33 + b"]" * 33 + b"}"),
    "much too deep": (JSON, b"[" * 200_000),
    "NUL byte": (JSON, b'{"name": "a\0b"}'),
    "NUL escape": (JSON, b'{"name": "a", "run": {"command": ["a\\u0000b"]}}'),
    "NUL escape in a key": (JSON, b'{"name": "a", "labels": {"a\\u0000": "b"}}'),
    "half a surrogate": (JSON, b'{"name": "a", "run": {"command": ["\\ud800"]}}'),
    "half a surrogate in a key": (JSON, b'{"name": "a", "\\udfff": 1}'),
    "invalid UTF-8": (JSON, b'{"name": "\xff\xfe"}'),
    "UTF-16": (JSON, json.dumps(document()).encode("utf-16")),
    "YAML sent as JSON": (JSON, b"name: train"),
    "yaml: empty": (YAML, b""),
    "yaml: only a comment": (YAML, b"# nothing\n"),
    "yaml: a list": (YAML, b"- a\n- b\n"),
    "yaml: broken": (YAML, b"name: [train"),
    "yaml: tab": (YAML, b"name:\n\t- a"),
    "yaml: two documents": (YAML, b"name: a\n---\nname: b\n"),
    "yaml: anchor": (YAML, b"name: &n train\nrun: {command: ['true']}\n"),
    "yaml: alias": (YAML, b"name: *n\n"),
    "yaml: billion laughs": (
        YAML,
        b"a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c]\n",
    ),
    "yaml: recursive": (YAML, b"&a [*a]"),
    "yaml: merge key": (YAML, b"<<: {name: train}\nrun: {command: ['true']}\n"),
    "yaml: python object": (YAML, b"name: !!python/object/apply:os.system ['id']\n"),
    "yaml: own tag": (YAML, b"name: !env HOME\n"),
    "yaml: duplicate key": (YAML, b"name: a\nname: b\nrun: {command: ['true']}\n"),
    "yaml: duplicate key, quoted": (YAML, b"name: a\n'name': b\n"),
    "yaml: number as a key": (YAML, b"name: a\nlabels: {1: b}\n"),
    "yaml: list as a key": (YAML, b"? [a]\n: b\n"),
    "yaml: NUL escape": (YAML, b'name: "a\\0b"\n'),
    "yaml: NUL byte": (YAML, b"name: a\0b\n"),
    "yaml: control character": (YAML, b"name: a\x07b\n"),
    "yaml: invalid UTF-8": (YAML, b"name: \xff\n"),
    "yaml: infinity": (YAML, b"name: a\npriority: .inf\n"),
    "yaml: too deep": (YAML, b"name: " + b"[" * 40 + b"]" * 40),
    "yaml: much too deep": (YAML, b"[" * 200_000),
    "yaml: an integer too large": (YAML, b"name: a\npriority: " + b"9" * 5000 + b"\n"),
    "yaml: a date": (YAML, b"name: 2026-01-01\nrun: {command: ['true']}\n"),
}


async def test_a_wrong_field_is_named_and_nothing_is_stored(gateway: Gateway) -> None:
    wrong: dict[str, Any] = {}
    for case, (body, field) in FIELDS.items():
        answer = await gateway.http.post("/v1/jobs", content=body, headers={"content-type": JSON})
        if answer.status_code != 422 or fields_of(answer) != [field] or not answer.json()["errors"][0]["message"]:
            wrong[case] = (answer.status_code, answer.text)
    assert wrong == {}
    await assert_nothing_stored(gateway)


async def test_a_document_that_is_none_is_refused(gateway: Gateway) -> None:
    wrong: dict[str, Any] = {}
    for case, (media, body) in DOCUMENTS.items():
        answer = await gateway.http.post("/v1/jobs", content=body, headers={"content-type": media})
        if answer.status_code != 422 or not fields_of(answer):
            wrong[case] = (answer.status_code, answer.text)
    assert wrong == {}
    await assert_nothing_stored(gateway)


async def test_all_wrong_fields_are_named_at_once(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/jobs", content=but(priority="x", tasks={"gpus": 0}, extra=1))

    assert sorted(fields_of(answer)) == ["extra", "priority", "tasks.gpus"]


async def test_what_looks_odd_but_is_fine_is_accepted_byte_for_byte(gateway: Gateway) -> None:
    argument = "π · \u2028 \U0001f600 \\ \" ' \n\t {}[]"
    answer = await gateway.http.post("/v1/jobs", content=with_run(command=["echo", argument], env={"A": "=b="}))

    assert answer.status_code == 201, answer.text
    job = (await gateway.http.get(f"/v1/jobs/{answer.json()['id']}")).json()
    assert job["spec"]["run"]["command"][1] == argument
    assert job["spec"]["run"]["env"] == {"A": "=b="}


async def test_a_body_too_large_is_refused_however_it_is_sent(gateway: Gateway) -> None:
    large = with_run(env={"A": "x" * 262_144})

    async def chunks() -> Any:
        for start in range(0, len(large), 10_000):
            yield large[start : start + 10_000]

    declared = await gateway.http.post("/v1/jobs", content=large)
    chunked = await gateway.http.post("/v1/jobs", content=chunks())

    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert "262144 bytes" in declared.json()["detail"]
    await assert_nothing_stored(gateway)


async def test_the_largest_body_is_accepted(gateway: Gateway) -> None:
    smallest = len(with_run(env={"A": "", "B": "", "C": ""}))
    third, rest = divmod(262_144 - smallest, 3)
    body = with_run(env={"A": "x" * third, "B": "x" * third, "C": "x" * (third + rest)})

    assert len(body) == 262_144
    assert (await gateway.http.post("/v1/jobs", content=body)).status_code == 201


async def test_media_types_that_are_not_accepted(gateway: Gateway) -> None:
    for media in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "application/octet-stream"):
        answer = await gateway.http.post("/v1/jobs", content=but(), headers={"content-type": media})
        assert answer.status_code == 415, media
        assert "application/yaml" in answer.json()["detail"]
    packed = await gateway.http.post("/v1/jobs", content=but(), headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    queue = await gateway.http.put("/v1/queues/fast", content=b"gpu_quota: 1", headers={"content-type": YAML})
    assert queue.status_code == 415


async def test_a_key_that_is_no_key_is_refused(gateway: Gateway) -> None:
    for key in ("", "x" * 256, "tab\there", "kéy"):
        headers = [(b"idempotency-key", key.encode("latin-1"))]
        answer = await gateway.http.post("/v1/jobs", content=but(), headers=headers)
        assert (answer.status_code, fields_of(answer)) == (422, ["Idempotency-Key"]), key


async def test_query_values_are_checked_and_unknown_ones_refused(gateway: Gateway) -> None:
    job = await gateway.submit()
    cases = {
        "/v1/jobs?limit=0": "limit",
        "/v1/jobs?limit=501": "limit",
        "/v1/jobs?limit=many": "limit",
        "/v1/jobs?state=walking": "state",
        "/v1/jobs?state=": "state",
        "/v1/jobs?project=..%2Fx": "project",
        "/v1/jobs?name=a%00b": "name",
        "/v1/jobs?label=team": "label.0",
        "/v1/jobs?label=team%3Da%00": "label.0",
        "/v1/jobs?cursor=nonsense": "cursor",
        "/v1/jobs?cursor=ajE6LTU": "cursor",
        "/v1/jobs?active=perhaps": "active",
        "/v1/jobs?stat=running": "stat",
        f"/v1/jobs/{job}/wait?timeout=-1": "timeout",
        f"/v1/jobs/{job}/wait?timeout=nan": "timeout",
        f"/v1/jobs/{job}/events?after=-1": "after",
        f"/v1/jobs/{job}/events?after={10**30}": "after",
        f"/v1/jobs/{job}/logs?offset=-5": "offset",
        f"/v1/jobs/{job}/logs?task=1": "task",
        "/v1/events?type=a%0Ab": "type",
        "/v1/events?job=x": "job",
        "/v1/usage?since=yesterday": "since",
        "/v1/usage?until=now&colour=red": "colour",
    }
    wrong: dict[str, Any] = {}
    for path, field in cases.items():
        answer = await gateway.http.get(path)
        if answer.status_code != 422 or fields_of(answer) != [field]:
            wrong[path] = (answer.status_code, answer.text)
    assert wrong == {}


async def test_paths_that_lead_nowhere(gateway: Gateway) -> None:
    for path in (
        "/v1/jobs/nothing",
        "/v1/jobs/job-00000000000000000000000000",
        "/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/v1/jobs/%00",
        "/v1/jobs/%ff%fe",
        "/v1/jobs/",
        "/v1/jobs/" + "a" * 5000,
        "/internal/admission/queues",
        "/v2/jobs",
    ):
        answer = await gateway.http.get(path)
        assert answer.status_code == 404, (path, answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json"
    for path in ("/v1/nodes/..%2fqueues/cordon", "/v1/nodes/a..b/cordon", "/v1/nodes/nobody/cordon"):
        assert (await gateway.http.post(path)).status_code == 404, path
    assert (await gateway.http.put("/v1/queues/a%2e%2e", json={"gpu_quota": 1})).status_code == 404
    refused = await gateway.http.patch("/v1/jobs")
    assert (refused.status_code, refused.headers["content-type"]) == (405, "application/problem+json")


async def test_bytes_that_are_no_request(gateway: Gateway) -> None:
    authorization = f"authorization: Bearer {ADMIN_TOKEN}\r\n".encode()
    line = b"GET /v1/me HTTP/1.1\r\nhost: x\r\n" + authorization
    chunked = line + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n1\r\nx\r\n0\r\n"
    cases = {
        "nonsense": ((b"\x16\x03\x01 hello\r\n\r\n",), b" 400 "),
        "a long header": ((line, b"x: " + b"y" * 40_000 + b"\r\n\r\n"), b" 431 "),
        "many headers": ((line, b"".join(b"x%d: y\r\n" % n for n in range(9000)), b"\r\n"), b" 431 "),
        "a header without end": ((line, b"x: " + b"y" * 20_000, b"y" * 20_000, b"y" * 20_000), b" 431 "),
        "a long path": ((b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",), b" 431 "),
    }
    for case, (parts, expected) in cases.items():
        answer = await raw_exchange(gateway, *parts)
        assert expected in answer.split(b"\r\n")[0], (case, answer[:200])
    endless_trailer = await raw_exchange(gateway, chunked, b"x: " + b"y" * 40_000 + b"\r\n\r\n")
    assert endless_trailer.count(b"HTTP/1.1") <= 2
    assert (await gateway.http.get("/v1/me")).status_code == 200


async def assert_nothing_stored(gateway: Gateway) -> None:
    async with gateway.runtime.engine.connect() as connection:
        jobs = await connection.scalar(text("SELECT count(*) FROM gateway.jobs"))
        keys = await connection.scalar(text("SELECT count(*) FROM gateway.idempotency"))
    assert (jobs, keys) == (0, 0)
    assert await events_of(gateway.runtime, JOBS_REQUESTS) == []
