"""What a consumer hands out and what it passes over, on a real Kafka."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from support.event_log import GOLDEN, Log, changed, headers_of, job_event, number_of
from yard_client.events import EventConsumer, MalformedRecord
from yard_events.base import unwrap
from yard_events.registry import JOBS_EVENTS, NODES_EVENTS
from yard_events.types import JobFact, JobFailed, JobRunning, JobStarting, TaskExited

END = 10_000
"""The number of an event that tells a reader of these tests that it has seen everything."""


async def everything(log: Log, **options: Any) -> tuple[list[Any], EventConsumer]:
    """All events up to the one numbered END, which is written here and wanted by every filter but those of types."""
    await log.write([job_event(END)])
    found = []
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **options) as consumer:
        async for event in consumer:
            if event.id == f"evt-{END}":
                return found, consumer
            found.append(event)
    raise AssertionError


async def test_every_golden_event_of_jobs_arrives_typed_and_whole(log: Log) -> None:
    golden = [replace(e, publish_seq=n) for n, e in enumerate(GOLDEN.values()) if e.topic == JOBS_EVENTS]
    await log.write(golden)
    found, consumer = await everything(log)
    assert len(found) == len(golden) == 10
    for number, (event, envelope) in enumerate(zip(found, golden, strict=True)):
        assert event.data == unwrap(envelope)
        assert (event.topic, event.partition, event.offset) == (JOBS_EVENTS, 0, number)
        for name in ("type", "id", "source", "time", "subject", "key", "value", "project_id", "correlation_id"):
            assert getattr(event, name) == getattr(envelope, name), name
        assert (event.causation_id, event.publish_seq) == (envelope.causation_id, envelope.publish_seq)
        assert event.headers == envelope.extra
        assert event.json() == json.loads(envelope.value)
    assert consumer.counts.delivered == 11


async def test_doubles_are_dropped_by_sequence_and_without_one_by_id(log: Log) -> None:
    a, b, c = job_event(1), job_event(2), job_event(3)
    other = replace(job_event(1), source="yard/elsewhere", id="evt-other")
    unnumbered = replace(job_event(4), publish_seq=None)
    same_id = replace(unnumbered, source="yard/elsewhere")
    await log.write([a, b, a, b, c, other, unnumbered, unnumbered, same_id])
    found, consumer = await everything(log)
    assert [(event.source, event.id) for event in found] == [
        ("yard/admission", "evt-1"),
        ("yard/admission", "evt-2"),
        ("yard/admission", "evt-3"),
        ("yard/elsewhere", "evt-other"),
        ("yard/admission", "evt-4"),
        ("yard/elsewhere", "evt-4"),
    ]
    assert consumer.counts.doubles == 3


async def test_sequences_count_per_partition(wide_log: Log) -> None:
    for partition in range(4):
        await wide_log.write([job_event(7), job_event(7)], partition=partition)
    found = []
    async with EventConsumer(wide_log.bootstrap, prefix=wide_log.prefix) as consumer:
        async for event in consumer:
            found.append(event.partition)
            if len(found) == 4:
                break
    assert sorted(found) == [0, 1, 2, 3]


async def test_records_of_a_transaction_that_was_given_up_are_not_seen(log: Log) -> None:
    writer = AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=f"{log.prefix}t")
    await writer.start()
    try:
        for number, keep in ((1, True), (2, False), (3, True)):
            event = job_event(number)
            await writer.begin_transaction()
            await writer.send_and_wait(log.prefix + event.topic, event.value, key=b"k", headers=headers_of(event))
            await (writer.commit_transaction() if keep else writer.abort_transaction())
    finally:
        await writer.stop()
    found, _ = await everything(log)
    assert [number_of(event) for event in found] == [1, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"types": [JobFailed, "yard.jobs.running.v1"]}, [1, 2, 4, 5]),
        ({"types": [JobRunning], "projects": ["nlp"]}, [1, 4]),
        ({"projects": ["vision"]}, [5]),
        ({"queues": ["research"]}, [1, 2, 3]),
        ({"queues": ["research", "night"], "types": [JobRunning]}, [1, 4, 5]),
        ({"projects": []}, []),
    ],
)
async def test_filters(log: Log, options: dict[str, Any], expected: list[int]) -> None:
    running, failed = "yard.jobs.running.v1", "yard.jobs.failed.v1"
    await log.write(
        [
            job_event(1, event_type=running),
            job_event(2, event_type=failed),
            job_event(3, event_type="yard.jobs.queued.v1"),
            changed(job_event(4, event_type=running), queue="night"),
            replace(changed(job_event(5, event_type=running), project_id="vision", queue="night"), project_id="vision"),
        ]
    )
    marker = changed(job_event(END, event_type=running), queue="end", project_id="end")
    await log.write([replace(marker, project_id="end")])
    options = dict(options)
    if "projects" in options:
        options["projects"] = [*options["projects"], "end"]
    if "queues" in options:
        options["queues"] = [*options["queues"], "end"]
    found = []
    async with EventConsumer(log.bootstrap, prefix=log.prefix, **options) as consumer:
        async for event in consumer:
            if number_of(event) == END:
                break
            found.append(number_of(event))
    assert found == expected
    assert consumer.counts.filtered == 5 - len(expected)


async def test_types_lead_to_their_topics(log: Log) -> None:
    await log.write([replace(GOLDEN["yard.nodes.exited.v1"], publish_seq=1), job_event(1), job_event(2)])
    topics = set()
    async with EventConsumer(log.bootstrap, prefix=log.prefix, types=[TaskExited, JobRunning]) as consumer:
        async for event in consumer:
            topics.add(event.topic)
            if consumer.counts.delivered == 3:
                break
    assert topics == {JOBS_EVENTS, NODES_EVENTS}


async def test_unknown_types_are_passed_over_or_handed_out_raw(log: Log) -> None:
    later = replace(job_event(2), type="yard.jobs.paused.v1", value=b'{"job_id":"job-2","until":"later"}')
    await log.write([job_event(1), later, job_event(3)])
    found, consumer = await everything(log)
    assert [number_of(event) for event in found] == [1, 3]
    assert consumer.counts.unknown == 1

    found, _ = await everything(log, unknown="raw")
    assert [event.type for event in found] == ["yard.jobs.running.v1", "yard.jobs.paused.v1", "yard.jobs.running.v1"]
    assert found[1].data is None
    assert found[1].json() == {"job_id": "job-2", "until": "later"}
    chosen, _ = await everything(log, unknown="raw", topics=[JOBS_EVENTS], types=["yard.jobs.paused.v1", JobRunning])
    assert [event.type for event in chosen] == [event.type for event in found]


async def test_fields_of_a_later_version_are_ignored_and_can_be_read(log: Log) -> None:
    starting = job_event(1, event_type="yard.jobs.starting.v1")
    places = json.loads(starting.value)["tasks"]
    await log.write([changed(starting, priority_class="gold", tasks=[places[0] | {"slice": 3}])])
    [event], _ = await everything(log)
    assert isinstance(event.data, JobStarting)
    assert event.data.tasks[0].node == "node-1"
    assert event.json()["priority_class"] == "gold"


def damaged() -> list[tuple[str, bytes, list[tuple[str, bytes]]]]:
    """Records that are no events, each for another reason; none shares a source's number with a good one."""
    event = replace(job_event(500), source="yard/broken")
    without = [header for header in headers_of(event) if header[0] != "ce_time"]
    return [
        ("broken JSON", b'{"job_id": ', headers_of(event)),
        ("the wrong type", b'{"job_id": 17}', headers_of(event, yard_publishseq="501")),
        ("no UTF-8", b"\xff\xfe", headers_of(event, yard_publishseq="502")),
        ("nothing", b"", headers_of(event, yard_publishseq="503")),
        ("no headers", event.value, []),
        ("a header is missing", event.value, [h for h in without if h[0] != "yard_publishseq"]),
        ("a number that is none", event.value, headers_of(event, yard_publishseq="-1")),
        ("a time without a zone", event.value, headers_of(event, ce_time="2026-01-01T00:00:00", yard_publishseq="504")),
        ("another CloudEvents", event.value, headers_of(event, ce_specversion="2.0", yard_publishseq="505")),
    ]


async def test_what_is_no_event_is_told_and_passed_over(log: Log) -> None:
    await log.write([job_event(1)])
    records = damaged()
    for _, value, headers in records:
        await log.raw(JOBS_EVENTS, value, headers, key=b"\xffkey")
    await log.write([job_event(2)])
    told: list[MalformedRecord] = []
    found, consumer = await everything(log, on_malformed=told.append)
    assert [number_of(event) for event in found] == [1, 2]
    assert consumer.counts.malformed == len(told) == len(records)
    for (what, value, headers), record in zip(records, told, strict=True):
        assert record.error, what
        assert record.value == value
        assert record.headers == {name: text.decode() for name, text in headers}
        assert (record.topic, record.key) == (JOBS_EVENTS, b"\xffkey")
    assert [record.offset for record in told] == list(range(1, len(records) + 1))


async def test_what_is_no_event_is_logged_where_nobody_wants_to_know(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    await log.raw(JOBS_EVENTS, b"{", headers_of(replace(job_event(500), source="yard/broken")))
    await everything(log)
    assert f"{JOBS_EVENTS}/0@0 is no event" in caplog.text


async def test_a_tombstone_is_no_event_and_no_fault(log: Log) -> None:
    await log.raw(JOBS_EVENTS, None, [], key=b"job-1")
    found, consumer = await everything(log)
    assert found == []
    assert (consumer.counts.tombstones, consumer.counts.malformed) == (1, 0)


async def test_the_largest_value_arrives(log: Log) -> None:
    text = "x" * (2**20 - 1000)
    await log.write([job_event(1), changed(job_event(2), detail=text), job_event(3)])
    found, _ = await everything(log)
    assert [number_of(event) for event in found] == [1, 2, 3]
    assert isinstance(found[1].data, JobFact)
    assert found[1].data.detail == text
