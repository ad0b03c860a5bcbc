"""Groups: one active member, a standby that takes over exactly where the other one ended."""

import asyncio

from support.bus_harness import BusHarness
from support.contract import ONE, Recorder, active_in, answers, consuming, effects, ended_by, event, partitions, until
from yard_domain.errors import Retryable
from yard_runtime.service import EventService
from yard_store.unit_of_work import Store


async def test_a_second_member_waits_and_takes_over_when_the_first_leaves(bus_harness: BusHarness) -> None:
    joined = asyncio.Event()

    async def standby() -> None:
        async with bus_harness.second.bus.session("group", [ONE.name]) as session:
            await active_in(session)
            joined.set()

    async with bus_harness.first.bus.session("group", [ONE.name]) as session:
        mine = await active_in(session)
        waiting = asyncio.create_task(standby())
        # Proof that the second one had every chance: another group is joined meanwhile.
        async with bus_harness.second.bus.session("other", [ONE.name]) as other:
            assert await active_in(other) == mine
        assert not joined.is_set()
    async with asyncio.timeout(20):
        await joined.wait()
        await waiting


async def test_readers_without_a_group_do_not_wait(bus_harness: BusHarness) -> None:
    async with (
        bus_harness.first.bus.session("group", [ONE.name]),
        bus_harness.first.bus.session(None, [ONE.name]),
        bus_harness.second.bus.session(None, [ONE.name]) as session,
    ):
        assert await partitions(session)


async def test_a_standby_that_is_cancelled_gives_up_its_place(bus_harness: BusHarness) -> None:
    async def join() -> None:
        async with bus_harness.second.bus.session("group", [ONE.name]):
            await asyncio.Event().wait()

    async with bus_harness.first.bus.session("group", [ONE.name]):
        waiting = asyncio.create_task(join())
        async with bus_harness.second.bus.session("other", [ONE.name]):
            waiting.cancel()
            await asyncio.wait([waiting])
    async with asyncio.timeout(20), bus_harness.first.bus.session("group", [ONE.name]) as session:
        assert await active_in(session)


async def test_the_standby_continues_exactly_when_the_active_members_connection_is_killed(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    first, second = Recorder(), Recorder()
    bus = bus_harness.first.bus
    active = EventService("contract", store, bus, "one", {ONE.name: first})
    standby = EventService("contract", second_store, bus_harness.second.bus, "two", {ONE.name: second})
    tasks = [asyncio.create_task(active.run(lambda: None))]
    await bus.publish([event(0), event(1)])
    await first.until(0, 1)
    tasks.append(asyncio.create_task(standby.run(lambda: None)))
    await bus.publish([event(2)])
    await first.until(2)
    assert not standby.active

    await bus_harness.end_active_member()
    await until(lambda: standby.active, "the standby is active")
    await bus.publish([event(3), event(4)])
    await second.until(3, 4)
    assert (first.committed, second.committed) == ([0, 1, 2], [3, 4])

    await bus_harness.end_active_member()
    await bus.publish([event(5)])
    await first.until(5)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [n for _, n in await effects(store)] == [0, 1, 2, 3, 4, 5]
    assert await answers(bus_harness, 6) == [0, 1, 2, 3, 4, 5]


async def test_takeovers_under_load_lose_and_double_nothing(
    bus_harness: BusHarness, store: Store, second_store: Store
) -> None:
    recorders = [Recorder(), Recorder()]
    services = [
        EventService("contract", store, bus_harness.first.bus, "one", {ONE.name: recorders[0]}),
        EventService("contract", second_store, bus_harness.second.bus, "two", {ONE.name: recorders[1]}),
    ]
    tasks = [asyncio.create_task(service.run(lambda: None)) for service in services]
    for n in range(60):
        await bus_harness.first.bus.publish([event(n)])
        if n % 15 == 14:
            async with asyncio.timeout(20):
                while n not in recorders[0].committed + recorders[1].committed:
                    await asyncio.wait([asyncio.create_task(_any(recorders, n))])
            await bus_harness.end_active_member()
    await _any(recorders, 59)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [n for _, n in await effects(store)] == list(range(60))
    assert await answers(bus_harness, 60) == list(range(60))


async def _any(recorders: list[Recorder], n: int) -> None:
    """Until one of them committed `n`."""
    waiting = [asyncio.create_task(recorder.until(n)) for recorder in recorders]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_consumer_whose_session_is_over_ends_with_retryable(bus_harness: BusHarness, store: Store) -> None:
    recorder = Recorder()
    async with consuming(store, bus_harness.first.bus, {ONE.name: recorder}) as (_, task):
        await bus_harness.first.bus.publish([event(0)])
        await recorder.until(0)
        await bus_harness.end_sessions()
        assert await ended_by(task) == {Retryable}
