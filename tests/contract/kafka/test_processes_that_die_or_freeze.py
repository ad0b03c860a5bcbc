"""Real processes, killed where it hurts and frozen longer than their session: every effect happens once."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy as sa

from support.contract import ONE, effects, until
from support.kafka_harness import admin
from support.kafka_service import QUICK, Loop, make_loop, make_topics
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_events.envelope import publish_sequence
from yard_runtime.service import Runtime

TESTS = Path(__file__).parents[2]

# Whoever strikes a published row waits for the holder of this lock.
STRIKING_WAITS = (
    "CREATE FUNCTION contract.hold() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN OLD; END $$",
    "CREATE TRIGGER hold BEFORE DELETE ON contract.outbox FOR EACH ROW EXECUTE FUNCTION contract.hold()",
)


@asynccontextmanager
async def own_topics(bootstrap: str) -> AsyncIterator[KafkaOptions]:
    options = KafkaOptions(bootstrap, prefix=f"p{secrets.token_hex(5)}.", **QUICK)
    await make_topics(options)
    try:
        yield options
    finally:
        async with admin(options) as client:
            await client.delete_topics([name for name in await client.list_topics() if name.startswith(options.prefix)])


class Process:
    """One instance in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def until_says(self, word: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while (line := await self.process.stdout.readline()).decode().strip() != word:
                assert line, "it ended"

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def instance(dsn: str, options: KafkaOptions, name: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "support.kafka_service_process", dsn, options.bootstrap, options.prefix, name),
        cwd=TESTS,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def log_of(loop: Loop, count: int) -> list[tuple[int, int]]:
    """(publish sequence, offset) of the first records of topic ONE, doubles included."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(20), loop.bus.session(None, [ONE.name]) as session:
        async for refs in session.assignments():
            [ref] = refs
            offset: int | None = None
            while len(found) < count:
                records = await session.read(ref, offset, 1000)
                offset = records[-1].following
                found += [(publish_sequence(record.headers) or 0, record.offset) for record in records]
            return found
    raise AssertionError


async def test_a_relay_killed_between_publish_and_mark_publishes_again_and_nothing_happens_twice(
    kafka: str, runtime: Runtime, database: str
) -> None:
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options, "writer")  # never runs: it only leaves events in the outbox
        async with runtime.engine.begin() as connection:
            for statement in STRIKING_WAITS:
                await connection.execute(sa.text(statement))
        async with instance(database, options, "one") as one:
            await one.until_says("ready")
            async with runtime.engine.connect() as holding:
                transaction = await holding.begin()
                await holding.execute(sa.text("SELECT pg_advisory_xact_lock(42)"))
                await loop.emit(range(5))
                await loop.until_done(5)
                # They were published, or nothing could have come of them, and wait to be struck.
                assert await loop.outbox() == 5
                one.signal(signal.SIGKILL)
                await one.process.wait()
                await transaction.rollback()
        async with runtime.engine.begin() as connection:
            await connection.execute(sa.text("DROP TRIGGER hold ON contract.outbox"))
        async with instance(database, options, "two") as two:
            await two.until_says("ready")
            await until(lambda: _empty(loop), "the outbox is empty")
            await loop.emit([5])
            await loop.until_done(6)
        assert [n for _, n in await effects(loop.store)] == [0, 1, 2, 3, 4, 5]
        sequences = [sequence for sequence, _ in await log_of(loop, 11)]
        assert sequences == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5], "they really went out twice, under the same numbers"
        await loop.bus.close()


async def _empty(loop: Loop) -> bool:
    return await loop.outbox() == 0


async def test_an_instance_frozen_past_its_session_and_thawed_changes_nothing(
    kafka: str, runtime: Runtime, database: str
) -> None:
    async with own_topics(kafka) as options:
        loop = await make_loop(runtime, options, "writer")
        async with instance(database, options, "one") as one:
            await one.until_says("ready")
            await loop.emit(range(5))
            await loop.until_done(5)
            async with instance(database, options, "two") as two:
                one.signal(signal.SIGSTOP)
                await loop.emit(range(5, 10))
                await two.until_says("ready")
                await loop.until_done(10)
                one.signal(signal.SIGCONT)
                await one.until_says("standby")
                await loop.emit(range(10, 20))
                await loop.until_done(20)
                assert [n for _, n in await effects(loop.store)] == list(range(20))
                # It is a member again: when the other one goes, it takes over.
                two.signal(signal.SIGKILL)
                await one.until_says("ready")
                await loop.emit(range(20, 25))
                await loop.until_done(25)
        assert [n for _, n in await effects(loop.store)] == list(range(25))
        await loop.bus.close()


async def test_the_bus_of_a_process_that_only_writes_needs_no_kafka(runtime: Runtime) -> None:
    nowhere = KafkaOptions("127.0.0.1:1", **QUICK)
    loop = await make_loop(runtime, nowhere)
    await loop.emit(range(3))
    assert await loop.outbox() == 3
    assert isinstance(loop.bus, KafkaBus)
