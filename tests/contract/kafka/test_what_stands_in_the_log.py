"""Records of strangers and extremes: handled or parked, and the others flow."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

import pytest
from aiokafka import AIOKafkaProducer

from support.contract import AT, ONE, Counted, effects, parked, until
from support.kafka_harness import admin
from support.kafka_service import QUICK, Loop, make_topics, running_loop
from support.virtual_clock import VirtualClock
from yard_bus.kafka_assignor import Claim, choose
from yard_bus.kafka_options import KafkaOptions
from yard_domain.errors import Permanent
from yard_events.base import wrap
from yard_events.envelope import MAX_VALUE_BYTES
from yard_runtime.service import Runtime


@pytest.fixture
async def options(kafka: str) -> AsyncIterator[KafkaOptions]:
    chosen = KafkaOptions(kafka, prefix=f"r{secrets.token_hex(5)}.", **QUICK)
    await make_topics(chosen)
    yield chosen
    async with admin(chosen) as client:
        await client.delete_topics([name for name in await client.list_topics() if name.startswith(chosen.prefix)])


@pytest.fixture
async def loop(runtime: Runtime, options: KafkaOptions) -> AsyncIterator[Loop]:
    async with running_loop(runtime, options) as running:
        yield running


class Large(Counted):
    TYPE: ClassVar[str] = "yard.contract.large.v1"
    filler: str


def good_headers(n: int) -> list[tuple[str, bytes]]:
    envelope = wrap(Counted(n=n), event_id=f"evt-{n}", source="tests", time=AT)
    return [(name, text.encode()) for name, text in envelope.headers().items()]


GOOD = b'{"k": "a", "n": 7}'
# (key, value, headers, what becomes of it)
STRANGE = {
    "next to nothing": (None, b"", [], "parked"),
    "no key": (None, GOOD, good_headers(7), "handled"),
    "a tombstone": (b"a", None, good_headers(7), "parked"),
    "no headers": (b"a", GOOD, [], "parked"),
    "a key that is no text": (b"\xff\xfe", GOOD, good_headers(7), "handled"),
    "headers that are no text": (b"a", GOOD, [*good_headers(7), ("odd", b"\xff\xfe\x00")], "handled"),
    "unknown fields": (b"a", b'{"k": "a", "n": 7, "later": [1]}', good_headers(7), "handled"),
    "an unknown type": (b"a", b"{}", [*good_headers(7), ("ce_type", b"yard.contract.later.v1")], "passed over"),
    "broken JSON": (b"a", b'{"k": "a", "n": ', good_headers(7), "parked"),
    "a value of another shape": (b"a", b"[1, 2]", good_headers(7), "parked"),
    "a time of no zone": (b"a", GOOD, [*good_headers(7), ("ce_time", b"2026-01-01T00:00:00")], "parked"),
    "a sequence that is no number": (b"a", GOOD, [*good_headers(7), ("yard_publishseq", b"x")], "parked"),
}


@pytest.mark.parametrize("case", list(STRANGE))
async def test_what_a_stranger_wrote_stops_nobody_else(loop: Loop, options: KafkaOptions, case: str) -> None:
    key, value, headers, fate = STRANGE[case]
    async with AIOKafkaProducer(bootstrap_servers=options.bootstrap) as producer:
        await producer.send_and_wait(options.prefix + ONE.name, value=value, key=key, headers=headers, partition=0)
    await loop.emit([1, 2], key="other")
    await loop.until_done(3 if fate == "handled" else 2)
    assert [n for k, n in await effects(loop.store) if k == "other"] == [1, 2]
    assert len(await parked(loop.store)) == (1 if fate == "parked" else 0)
    assert loop.service.problems() == []


async def test_a_strangers_record_that_is_larger_than_ours_may_be_is_parked_and_tells_of_itself(
    loop: Loop, options: KafkaOptions
) -> None:
    """Its dead letter must fit into the log itself, or nothing of the service would go out any more."""
    async with AIOKafkaProducer(bootstrap_servers=options.bootstrap, max_request_size=3 << 20) as producer:
        headers = [("big", b"x" * 300_000)]
        topic, value = options.prefix + ONE.name, b"y" * 1_700_000
        await producer.send_and_wait(topic, value=value, key=b"k" * 20_000, headers=headers, partition=0)
    await loop.emit([1])
    await loop.until_done(1)
    await until(lambda: _empty(loop), "its dead letter went out")
    assert len(await parked(loop.store)) == 1


async def test_the_largest_value_goes_through_and_one_byte_more_is_refused_where_it_is_made(
    runtime: Runtime, options: KafkaOptions
) -> None:
    room = MAX_VALUE_BYTES - len(Large(n=1, filler="").model_dump_json().encode())
    async with running_loop(runtime, options) as loop:
        async with loop.store.unit_of_work() as uow:
            uow.emit(Large(n=1, filler="x" * room))
        await loop.until_done(1)
        async with loop.store.unit_of_work() as uow:
            with pytest.raises(Permanent, match=str(MAX_VALUE_BYTES)):
                uow.emit(Large(n=2, filler="x" * (room + 1)))
            with pytest.raises(Permanent, match="key"):
                uow.emit(Counted(n=2, k="x" * 20_000))
        await loop.emit([3])
        await loop.until_done(2)
        assert [n for _, n in await effects(loop.store)] == [1, 3]


@pytest.mark.parametrize("days", [-400, 400])
async def test_a_clock_that_jumps_neither_ages_the_log_nor_disorders_it(
    runtime: Runtime, options: KafkaOptions, days: int
) -> None:
    """Topics go by the broker's clock, order and deduplication by none."""
    clock = VirtualClock(runtime.clock.now())
    jumping = replace(runtime, clock=clock)
    async with running_loop(jumping, options) as loop:
        await loop.emit(range(5))
        await loop.until_done(5)
        clock.advance(timedelta(days=days).total_seconds())
        await loop.emit(range(5, 10))
        await loop.until_done(10)
    async with admin(options) as client:
        before = await _first_offset(loop, options)
        # Twice the interval in which the test's broker looks for what is old.
        await asyncio.sleep(2.5)
        assert await _first_offset(loop, options) == before == 0
        assert client is not None
    async with running_loop(jumping, options) as loop:
        await loop.emit([10])
        await loop.until_done(11)
        assert [n for _, n in await effects(loop.store)] == list(range(11))


async def _first_offset(loop: Loop, options: KafkaOptions) -> int:
    async with loop.bus.session(None, [ONE.name]) as session:
        async for refs in session.assignments():
            [ref] = refs
            return (await session.read(ref, None, 1))[0].offset
    raise AssertionError


@pytest.mark.parametrize(
    ("claims", "chosen"),
    [
        ({"a": Claim(10, None), "b": Claim(5, None)}, "b"),
        ({"a": Claim(10, 11), "b": Claim(5, None)}, "a"),
        ({"a": Claim(10, 11), "b": Claim(5, 3_600_000)}, "b"),
        ({"a": Claim.decode(b""), "b": Claim.decode(b"nonsense"), "c": Claim(2**40, None)}, "c"),
        ({"a": Claim.decode(b"[1]"), "b": Claim.decode(None)}, "b"),
    ],
)
def test_one_member_is_chosen_whatever_their_clocks_say(claims: dict[str, Claim], chosen: str) -> None:
    assert choose(claims) == chosen


async def _empty(loop: Loop) -> bool:
    return await loop.outbox() == 0
