"""Real processes, killed where it hurts and frozen longer than their session: every effect happens once."""

import asyncio
import signal

import sqlalchemy as sa

from support.contract import ONE, effects, until
from support.kafka_instances import instance, own_topics
from support.kafka_service import QUICK, Loop, make_loop
from yard_bus.kafka import KafkaBus
from yard_bus.kafka_options import KafkaOptions
from yard_events.envelope import publish_sequence
from yard_runtime.service import Runtime

# Whoever strikes a published row waits for the holder of this lock.
STRIKING_WAITS = (
    "CREATE FUNCTION contract.hold() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN OLD; END $$",
    "CREATE TRIGGER hold BEFORE DELETE ON contract.outbox FOR EACH ROW EXECUTE FUNCTION contract.hold()",
)


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
