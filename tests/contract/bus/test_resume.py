"""Where a consumer goes on: state, outgoing events and offset are one, whatever dies and whenever."""

import asyncio
from dataclasses import replace

import pytest
import sqlalchemy as sa

from support.bus_harness import BusHarness
from support.contract import (
    MANY,
    ONE,
    TABLES,
    Recorder,
    answers,
    consuming,
    contract_store,
    effects,
    ended_by,
    event,
    stored_offset,
    until,
)
from support.severing_proxy import Sever
from support.virtual_clock import VirtualClock
from yard_bus.consumer import Consumer
from yard_domain.errors import Fenced, Retryable
from yard_runtime.service import EventService
from yard_store.database_errors import OutcomeUnknown
from yard_store.unit_of_work import Store, UnitOfWork


async def test_a_new_consumer_begins_at_the_oldest_event_and_stores_where_it_is(
    bus_harness: BusHarness, store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(n) for n in range(3)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(2)
    assert (await effects(store), await stored_offset(store)) == ([("a", 0), ("a", 1), ("a", 2)], 3)
    assert recorder.batches == [3], "what waits is taken as one batch"


async def test_batches_are_bounded(bus_harness: BusHarness, store: Store) -> None:
    await bus_harness.first.bus.publish([event(n) for n in range(7)])
    recorder = Recorder()
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}, limit=3):
        await recorder.until(6)
    assert recorder.batches == [3, 3, 1]


async def test_a_crash_before_the_commit_leaves_nothing_and_the_next_one_does_it_once(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(n) for n in range(3)])
    reached = asyncio.Event()

    async def dies_here(n: int, _uow: UnitOfWork) -> None:
        if n == 2:
            reached.set()
            await asyncio.Event().wait()

    async with consuming(store, bus, {ONE.name: Recorder(dies_here)}, limit=2):
        await reached.wait()
    assert (await effects(store), await stored_offset(store)) == ([("a", 0), ("a", 1)], 2)

    recorder = Recorder()
    async with consuming(second_store, bus_harness.second.bus, {ONE.name: recorder}):
        await recorder.until(2)
    assert recorder.committed == [2]
    assert await effects(store) == [("a", 0), ("a", 1), ("a", 2)]
    assert await answers(bus_harness, 3) == [0, 1, 2]


async def test_a_crash_after_the_commit_repeats_nothing(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(0)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(0)
    await bus.publish([event(1)])
    recorder = Recorder()
    async with consuming(second_store, bus_harness.second.bus, {ONE.name: recorder}):
        await recorder.until(1)
    assert recorder.committed == [1]
    assert await answers(bus_harness, 2) == [0, 1]


@pytest.mark.parametrize("already_consumed", [0, 1])
async def test_a_second_consumer_at_the_old_position_is_fenced_and_its_effects_are_rolled_back(
    bus_harness: BusHarness, store: Store, second_store: Store, already_consumed: int
) -> None:
    """Two that both believe to be the one: readers of no group stand for a group that failed to keep order."""
    bus = bus_harness.first.bus
    await bus.publish([event(n) for n in range(already_consumed)])
    if already_consumed:
        recorder = Recorder()
        async with consuming(store, bus, {ONE.name: recorder}, group=None):
            await recorder.until(0)
    in_handler, may_go_on = asyncio.Event(), asyncio.Event()

    async def waits(_n: int, _uow: UnitOfWork) -> None:
        in_handler.set()
        await may_go_on.wait()

    slow, quick = Recorder(waits), Recorder()
    async with (
        consuming(store, bus, {ONE.name: slow}, group=None) as (_, one),
        consuming(second_store, bus_harness.second.bus, {ONE.name: quick}, group=None) as (_, two),
    ):
        # The first one to move the offset holds its row; the other one waits for that and then finds it moved.
        await bus.publish([event(5)])
        await until(lambda: in_handler.is_set() or 5 in quick.committed, "one of them is at it")
        may_go_on.set()
        async with asyncio.timeout(20):
            await asyncio.wait([one, two], return_when=asyncio.FIRST_COMPLETED)
        assert await ended_by(one if one.done() else two) == {Fenced}
        await until(lambda: 5 in slow.committed + quick.committed, "the other one commits")
    assert [n for _, n in await effects(store)] == [*range(already_consumed), 5]
    assert await answers(bus_harness, already_consumed + 1) == [*range(already_consumed), 5]


async def test_a_consumer_that_retries_does_not_adopt_the_position_of_another(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    """It would do the other one's events again: they are in the batch that it still holds."""
    clock = VirtualClock()
    await bus_harness.first.bus.publish([event(n) for n in range(4)])
    failed: list[int] = []

    def fails_once(n: int, _uow: UnitOfWork) -> None:
        if not failed:
            failed.append(n)
            raise Retryable("not now")

    async def stops_at_two(n: int, _uow: UnitOfWork) -> None:
        if n == 2:
            await asyncio.Event().wait()

    zombie, other = Recorder(fails_once), Recorder(stops_at_two)
    behind_the_times = replace(bus_harness.first, clock=clock).store(TABLES, "contract")
    async with consuming(behind_the_times, bus_harness.first.bus, {ONE.name: zombie}, group=None) as (_, task):
        await clock.someone_sleeps()  # it holds all four events and will try again
        async with consuming(second_store, bus_harness.second.bus, {ONE.name: other}, group=None, limit=2):
            await other.until(0, 1)
        clock.advance(60)
        assert await ended_by(task) == {Fenced}
    assert [n for _, n in await effects(store)] == [0, 1]


@pytest.mark.parametrize("how", list(Sever), ids=lambda how: how.name.lower())
async def test_a_connection_lost_at_the_commit_has_its_effect_exactly_once(
    bus_harness: BusHarness, store: Store, how: Sever
) -> None:
    bus = bus_harness.first.bus
    async with bus_harness.losing_commits() as (runtime, proxy):
        behind = await contract_store(runtime)

        def arm(n: int, _uow: UnitOfWork) -> None:
            if n == 1 and not proxy.severed.is_set():
                proxy.sever_next_commit(how)

        recorder = Recorder(arm)
        service = EventService("contract", behind, bus, "test", {ONE.name: recorder}, backoff_first_seconds=0.01)
        task = asyncio.create_task(service.run(lambda: None))
        for n in range(3):
            await bus.publish([event(n)])
            await recorder.until(*{n} - ({1} if how is Sever.AFTER_COMMIT else set()))
            if n == 1:
                async with asyncio.timeout(20):
                    await proxy.severed.wait()
        await recorder.until(2)
        task.cancel()
        await asyncio.wait([task])
    assert [n for _, n in await effects(store)] == [0, 1, 2]
    assert await answers(bus_harness, 3) == [0, 1, 2]
    assert await stored_offset(store) == 3


async def test_an_unknown_outcome_ends_the_consumer_so_that_memory_is_rebuilt(
    bus_harness: BusHarness, store: Store
) -> None:
    async with bus_harness.losing_commits() as (runtime, proxy):
        recorder = Recorder(lambda _n, _uow: proxy.sever_next_commit(Sever.AFTER_COMMIT))
        behind = await contract_store(runtime)
        async with consuming(behind, bus_harness.first.bus, {ONE.name: recorder}) as (_, task):
            await bus_harness.first.bus.publish([event(0)])
            assert await ended_by(task) == {OutcomeUnknown}
    assert recorder.committed == [], "nobody may act on a commit that nobody confirmed"


async def test_a_connection_lost_before_the_commit_is_tried_again_in_place(
    bus_harness: BusHarness, store: Store
) -> None:
    bus = bus_harness.first.bus
    killed: list[int] = []

    async def loses_its_connection(_n: int, uow: UnitOfWork) -> None:
        if not killed:
            killed.append(await uow.connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)
            async with bus_harness.second.engine.connect() as connection:
                await connection.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": killed[0]})

    await bus.publish([event(0), event(1)])
    recorder = Recorder(loses_its_connection)
    async with consuming(store, bus, {ONE.name: recorder}) as (_, task):
        await recorder.until(0, 1)
        assert not task.done()
    assert killed
    assert [n for _, n in await effects(store)] == [0, 1]
    assert await answers(bus_harness, 2) == [0, 1]


async def test_dead_connections_of_the_pool_do_not_stop_a_consumer(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    recorder = Recorder()
    service = EventService(
        "contract", store, bus_harness.first.bus, "test", {ONE.name: recorder}, backoff_first_seconds=0.001
    )
    task = asyncio.create_task(service.run(lambda: None))
    for n in range(5):
        await bus_harness.second.bus.publish([event(n)])
        await recorder.until(n)
        async with bus_harness.second.engine.connect() as connection:
            await connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name = 'tests' AND datname = current_database()"
                )
            )
    await bus_harness.second.bus.publish([event(5)])
    await recorder.until(5)
    task.cancel()
    await asyncio.wait([task])
    assert [n for _, n in await effects(second_store)] == list(range(6))


async def _offset_beyond(harness: BusHarness, store: Store) -> None:
    async with store.unit_of_work() as uow:
        await uow.connection.execute(sa.update(TABLES.offsets).values(next_offset=100))


async def _offset_below(harness: BusHarness, store: Store) -> None:
    await harness.first.bus.publish([event(n) for n in range(1, 5)])
    await harness.drop_before(ONE.name, 4)


async def _other_incarnation(harness: BusHarness, store: Store) -> None:
    await harness.delete_and_make_again(ONE)
    await harness.first.bus.publish([event(7), event(8)])


BREAKS = {"beyond": _offset_beyond, "below": _offset_below, "another incarnation": _other_incarnation}


@pytest.mark.parametrize("case", list(BREAKS))
async def test_a_position_that_is_gone_stops_its_partition_alone_and_resets_nothing(
    bus_harness: BusHarness, store: Store, case: str
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(0)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder}):
        await recorder.until(0)
    await BREAKS[case](bus_harness, store)
    before = await store.offsets([ONE.name])

    recorder, others = Recorder(), Recorder()
    service = EventService("contract", store, bus, "test", {ONE.name: recorder, MANY.name: others})
    task = asyncio.create_task(service.run(lambda: None))
    await until(lambda: len(service.problems()) == 1 and ONE.name in service.problems()[0], "the stop is reported")
    await bus.publish([event(20 + n, f"k{n}", topic=MANY.name) for n in range(8)])
    await others.until(*range(20, 28))
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert recorder.committed == []
    assert await store.offsets([ONE.name]) == before


async def test_a_topic_deleted_under_a_running_consumer_stops_its_partition(
    bus_harness: BusHarness, store: Store
) -> None:
    bus = bus_harness.first.bus
    await bus.publish([event(0)])
    recorder = Recorder()
    async with consuming(store, bus, {ONE.name: recorder, MANY.name: recorder}) as (consumer, task):
        await recorder.until(0)
        await bus_harness.delete_and_make_again(ONE)
        await bus.publish([event(9, topic=MANY.name)])
        await recorder.until(9)
        await bus_harness.end_sessions()
        assert await ended_by(task) == {Retryable}
    # A bus that watches its topics has noticed already, one that is only woken has not looked yet.
    assert {ref.topic for ref in consumer.stopped} <= {ONE.name}
    async with consuming(store, bus, {ONE.name: recorder, MANY.name: recorder}) as (consumer, task):
        await until(lambda: consumer.stopped, "the other incarnation is noticed")
        assert [ref.topic for ref in consumer.stopped] == [ONE.name]


async def test_a_consumer_serves_all_partitions_of_all_its_topics(bus_harness: BusHarness, store: Store) -> None:
    bus = bus_harness.first.bus
    recorder = Recorder()
    sent = [event(n, f"k{n % 10}", topic=MANY.name) for n in range(50)] + [event(50)]
    async with consuming(store, bus, {ONE.name: recorder, MANY.name: recorder}) as (consumer, _):
        assert isinstance(consumer, Consumer)
        assert consumer.topics == [MANY.name, ONE.name]
        await bus.publish(sent)
        await recorder.until(*range(51))
    done = await effects(store)
    assert sorted(n for _, n in done) == list(range(51))
    for key in {key for key, _ in done}:
        numbers = [n for k, n in done if k == key]
        assert numbers == sorted(numbers)
