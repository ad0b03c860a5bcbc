"""Every service a process of its own over a real Kafka, two instances of each: work, restarts, traces, metrics."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.installation import Installation, installation, until
from support.kafka_installation import own_topics
from support.otlp_receiver import OtlpReceiver, otlp_receiver

SERVICES = ("inventory", "admission", "placement", "billing", "gateway")


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def on_kafka(kafka: str, receiver: OtlpReceiver) -> Iterator[Installation]:
    """One for this file: what is restarted here comes back."""
    arguments = ("--nodes", "2", "--devices", "4xH100-80GB", "--kafka", kafka, "--instances", "2")
    with installation(*arguments) as made, own_topics(made, kafka):
        made.env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        made.up()
        yield made


def second_gateway(made: Installation) -> httpx.Client:
    client = made.client()
    client.base_url = f"http://127.0.0.1:{made.port + 1}"
    return client


def document(*command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "job", "tasks": {"gpus": 1}, "run": {"command": list(command)}} | fields


def submit(client: httpx.Client, key: str, body: dict[str, Any]) -> str | None:
    """The job's id; None for no answer. The same key finds the same job."""
    try:
        answer = client.post("/v1/jobs", json=body, headers={"idempotency-key": key})
    except httpx.TransportError:
        return None
    return answer.json()["id"] if answer.status_code in (200, 201) else None


def ended(client: httpx.Client, job_id: str) -> dict[str, Any] | None:
    try:
        job = client.get(f"/v1/jobs/{job_id}").json()
    except (httpx.TransportError, json.JSONDecodeError):
        return None
    return job if job.get("state") in ("succeeded", "failed") else None


def test_a_job_runs_and_either_gateway_tells_of_it(on_kafka: Installation) -> None:
    with on_kafka.client() as first, second_gateway(on_kafka) as second:
        for asked, other in ((first, second), (second, first)):
            job_id = submit(asked, f"either-{asked.base_url.port}", document("echo", "hello"))
            waited = other.get(f"/v1/jobs/{job_id}/wait", params={"timeout": 30}, timeout=40).json()
            assert waited["state"] == "succeeded"
            assert waited["exit_code"] == 0


def test_one_trace_from_the_request_to_the_process(on_kafka: Installation, receiver: OtlpReceiver) -> None:
    with on_kafka.client() as client:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        body = document("sh", "-c", 'echo "$TRACEPARENT"')
        job_id = client.post("/v1/jobs", json=body, headers=headers).json()["id"]
        until(lambda: ended(client, job_id), 60, "the job ends")
        in_task = client.get(f"/v1/jobs/{job_id}/logs").text
    assert f"-{trace}-" in in_task, "the process knows the trace that the request began in"

    def complete() -> bool:
        names = {span.name for span in receiver.of_trace(trace)}
        return {"run task", "start task", "send yard.nodes.commands.v1", "send yard.placement.requests.v1"} <= names

    until(complete, 30, "all spans have come in")
    spans = {span.span_id: span for span in receiver.of_trace(trace)}
    [started] = [span for span in spans.values() if span.name == "start task"]
    path = [started]
    while path[-1].parent_id in spans:
        path.append(spans[path[-1].parent_id])
    services = list(dict.fromkeys(span.service for span in path))
    assert services == ["gpuyard-agent", "gpuyard-placement", "gpuyard-admission", "gpuyard-gateway"]
    assert path[-1].kind == "server"
    assert path[-1].parent_id == "00f067aa0ba902b7"
    assert started.attributes["yard.job.id"] == job_id
    starts = [span.start_ns for span in path]
    assert starts == sorted(starts, reverse=True), "a cause begins before its effect"
    for span in path:
        if span.name.startswith("send "):
            assert span.attributes["messaging.destination.name"] == span.name.removeprefix("send ")


def test_a_rolling_restart_under_load_loses_and_doubles_nothing(on_kafka: Installation) -> None:
    marks = on_kafka.root / "marks"
    marks.mkdir()
    stop = threading.Event()
    jobs: list[str] = []

    def load() -> None:
        number = 0
        with on_kafka.client() as first, second_gateway(on_kafka) as second:
            while not stop.is_set():
                key = f"rolling-{number}"
                body = document("sh", "-c", f"echo $YARD_JOB_ID >> {marks}/ran; sleep 0.2")
                # One gateway is down at a time: a client goes to the other, with the same key.
                found = submit(first, key, body) or submit(second, key, body)
                if found is not None:
                    jobs.append(found)
                    number += 1
                stop.wait(0.05)

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    for service in SERVICES:
        for instance in range(2):
            _restart(on_kafka, f"{service}-{instance}")
    stop.set()
    loading.join(60)
    assert len(jobs) > 20
    with on_kafka.client() as client:
        ends = Counter(until(lambda job=job: ended(client, job), 90, f"{job} ends")["state"] for job in jobs)
    assert ends == {"succeeded": len(jobs)}, on_kafka.logs()
    ran = Counter(Path(marks / "ran").read_text().split())
    assert ran == Counter(jobs), "every job runs exactly once"
    until(lambda: on_kafka.json("audit")["findings"] == [] or None, 30, "the audit is clean")


def _restart(made: Installation, name: str) -> None:
    """SIGTERM, and the supervisor's next one is ready."""
    old = made.pids()[name]
    psutil.Process(old).send_signal(signal.SIGTERM)
    until(lambda: made.pids().get(name) not in (None, old), 30, f"{name} is started again")
    transport = httpx.HTTPTransport(uds=str(made.data / "run" / f"{name}.sock"))

    def ready() -> bool:
        try:
            return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    with httpx.Client(transport=transport, base_url="http://internal") as client:
        until(ready, 60, f"{name} is ready")
