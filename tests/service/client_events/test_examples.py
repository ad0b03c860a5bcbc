"""The examples as integrators run them: as programs, against a real Kafka."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from support.event_log import Log, job_event
from support.free_ports import free_ports
from yard_events.registry import JOBS_EVENTS

EXAMPLES = Path(__file__).parents[3] / "examples"


async def run(name: str, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / name), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode().splitlines(), err.decode()


async def write_some(log: Log) -> None:
    failed, running = "yard.jobs.failed.v1", "yard.jobs.running.v1"
    later = replace(job_event(3), type="yard.jobs.paused.v1", value=b'{"job_id":"job-3","name":"n","state":"paused"}')
    await log.write([job_event(1, event_type=running), job_event(1, event_type=running)])
    await log.raw(JOBS_EVENTS, b"{", [("ce_source", b"x"), ("yard_publishseq", b"1"), ("ce_type", b"yard.jobs.x.v1")])
    await log.raw(JOBS_EVENTS, b"no event", [])
    await log.write([job_event(2, event_type=failed), later, job_event(4, event_type="yard.jobs.starting.v1")])


async def test_plain_kafka_needs_nothing_of_ours(log: Log) -> None:
    await write_some(log)
    at = ["--bootstrap", log.bootstrap, "--topic", log.prefix + JOBS_EVENTS]
    code, lines, errors = await run("follow_jobs_kafka.py", *at, "--from-beginning", "--count", "4")
    assert code == 0, errors
    assert lines == [
        "2026-03-01T09:00:00+00:00 job-1 train-llm: running",
        "2026-03-01T09:00:00+00:00 job-2 train-llm: failed (exit_code)",
        "2026-03-01T09:00:00+00:00 job-3 n: paused",
        "2026-03-01T09:00:00+00:00 job-4 train-llm: starting",
    ]
    assert [line for line in errors.splitlines() if "no event" in line][:1] == [
        error for error in errors.splitlines() if error.startswith("offset 2 is no event of a job")
    ]
    source = (EXAMPLES / "follow_jobs_kafka.py").read_text()
    assert "import yard" not in source
    assert "from yard" not in source


async def test_plain_kafka_without_the_topic_or_the_broker_says_so(log: Log) -> None:
    code, _, errors = await run("follow_jobs_kafka.py", "--bootstrap", log.bootstrap, "--topic", f"{log.prefix}none")
    assert (code, errors.strip().splitlines()[-1]) == (1, f"there is no topic {log.prefix}none at {log.bootstrap}")
    [port] = free_ports(1)
    code, _, errors = await run("follow_jobs_kafka.py", "--bootstrap", f"127.0.0.1:{port}")
    assert code == 1
    assert f"cannot reach Kafka at 127.0.0.1:{port}" in errors


async def test_the_typed_consumer_goes_on_where_it_ended(log: Log, tmp_path: Path) -> None:
    await write_some(log)
    arguments = ["--bootstrap", log.bootstrap, "--prefix", log.prefix, "--state", str(tmp_path / "positions.json")]
    code, lines, errors = await run("follow_jobs.py", *arguments, "--count", "2")
    assert code == 0, errors
    assert lines == ["job-1 train-llm: running", "job-2 train-llm: failed, exit code 3"]
    code, lines, errors = await run("follow_jobs.py", *arguments, "--count", "1", "--project", "nlp")
    assert (code, lines) == (0, ["job-4 train-llm: starting on node-1"]), errors


async def test_the_typed_consumer_shares_a_group(log: Log, group: str) -> None:
    await write_some(log)
    arguments = ["--bootstrap", log.bootstrap, "--prefix", log.prefix, "--group", group, "--count", "1"]
    assert (await run("follow_jobs.py", *arguments))[1] == ["job-1 train-llm: running"]
    assert (await run("follow_jobs.py", *arguments))[1] == ["job-2 train-llm: failed, exit code 3"]


async def test_the_typed_consumer_says_what_is_wrong_in_a_sentence(log: Log) -> None:
    code, _, errors = await run("follow_jobs.py", "--bootstrap", log.bootstrap, "--prefix", "none.")
    assert code == 1
    assert errors.strip().splitlines()[-1].startswith(f"no topic none.{JOBS_EVENTS} at {log.bootstrap}")
