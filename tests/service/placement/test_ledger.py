"""The ledger under contention: compare-and-reserve, terms, and processes that die in the middle."""

import asyncio

import pytest
import sqlalchemy as sa

from support.admission import log_of
from support.contract import until
from support.placement import SCOPE, PoolDesk, place_request
from yard_bus.consumer import Received
from yard_domain.errors import Conflict, Fenced, Permanent
from yard_events import registry, types
from yard_events.base import wrap
from yard_placement import repository
from yard_placement.app import build
from yard_placement.settings import PlacementSettings
from yard_runtime.service import Runtime

BOOK = "UPDATE placement.devices SET allocation_id = :holder WHERE uuid = :uuid AND allocation_id IS NULL"


async def waits_for_a_lock(runtime: Runtime) -> bool:
    async with runtime.engine.connect() as connection:
        found = await connection.scalar(
            sa.text(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND query LIKE 'UPDATE placement.devices%' AND datname = current_database()"
            )
        )
        return bool(found)


async def test_two_transactions_race_for_one_device(desk: PoolDesk, second_runtime: Runtime) -> None:
    """The cycle has chosen a device that somebody else books first: Conflict, nothing written, and it decides again."""
    await desk.node("n1", gpus=2)
    await desk.send(place_request("x"), settle=False)
    await desk.handle(registry.PLACEMENT_REQUESTS, await unread_requests(desk))
    async with second_runtime.engine.connect() as other, other.begin() as transaction:
        done = await other.execute(sa.text(BOOK), {"holder": "somebody", "uuid": "n1/0"})
        assert done.rowcount == 1
        cycle = asyncio.create_task(desk.cycle())
        await until(lambda: waits_for_a_lock(desk.runtime), "the cycle waits for the device")
        await transaction.commit()
    with pytest.raises(Conflict, match="only 0 of 1"):
        await cycle
    assert await desk.decided("x") == []
    assert await desk.sent() == []
    async with desk.store.unit_of_work() as uow:
        await uow.fence(desk.owner)
        await desk.service.scopes[SCOPE](uow, SCOPE)
    assert await desk.decided("x") == ["granted n1"]
    assert (await desk.holders())["n1/1"] == "x.t0"


async def test_the_running_service_decides_again_by_itself(runtime: Runtime, second_runtime: Runtime) -> None:
    desk = await PoolDesk.open(runtime)
    await desk.node("n1", gpus=2)
    service = await build(PlacementSettings(), runtime)
    ready = asyncio.Event()
    async with asyncio.timeout(20):
        running = asyncio.create_task(service.run(ready.set))
        try:
            await ready.wait()
            async with second_runtime.engine.connect() as other, other.begin() as transaction:
                await other.execute(sa.text(BOOK), {"holder": "somebody", "uuid": "n1/0"})
                await desk.send(place_request("x"), settle=False)
                await until(lambda: waits_for_a_lock(runtime), "the cycle waits for the device")
                await transaction.commit()
            await until(lambda: _granted(desk), "it is granted another device")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert (await desk.holders())["n1/1"] == "x.t0"


async def _granted(desk: PoolDesk) -> bool:
    return bool(await desk.decisions(types.AttemptGranted))


@pytest.mark.parametrize("flaw", ["healthy = false", "present = false"])
async def test_a_device_that_fell_out_after_the_look_is_not_booked(desk: PoolDesk, flaw: str) -> None:
    await desk.node("n1", gpus=1)
    await desk.place("x")
    async with desk.runtime.engine.connect() as connection:
        [allocation] = await repository.live_allocations_of_nodes(connection, ["n1"])
    await desk.over("x")
    async with desk.runtime.engine.begin() as connection:
        await connection.execute(sa.text(f"UPDATE placement.devices SET {flaw}"))
        with pytest.raises(Conflict, match="only 0 of 1"):
            await repository.book_devices(connection, [allocation])


async def test_a_device_is_never_freed_for_somebody_else(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=1)
    await desk.place("x")
    async with desk.runtime.engine.begin() as connection:
        await connection.execute(sa.text("UPDATE placement.devices SET allocation_id = 'somebody'"))
    async with desk.store.unit_of_work() as uow:
        await uow.connection.execute(
            sa.text("UPDATE placement.allocations SET outcome = 'succeeded', reason = 'exit_code', emptied = true")
        )
        await uow.connection.execute(sa.text("UPDATE placement.attempts SET attention = true"))
    with pytest.raises(Conflict, match="only 0 of 1"):
        await desk.cycle()
    assert await desk.rows("SELECT uuid FROM placement.devices WHERE allocation_id = 'somebody'") != []


async def test_an_owner_of_an_older_term_writes_nothing(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.send(place_request("x"), settle=False)
    await desk.handle(registry.PLACEMENT_REQUESTS, await unread_requests(desk))
    before = await desk.everything()
    await desk.store.take(SCOPE, "another instance")
    with pytest.raises(Fenced):
        await desk.cycle()
    assert await desk.everything() == before


async def test_a_restart_in_the_middle_of_a_gang_start(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.node("n2")
    await desk.place("g", count=2, gpus=2)
    await desk.ready("g", 0)
    desk = await desk.reopened()
    await desk.settle()
    await desk.ready("g", 1)
    assert await desk.commands() == ["n1 prepare g.t0 1", "n2 prepare g.t1 1", "n1 start g.t0 2", "n2 start g.t1 2"]
    starts = (await desk.sent())[2:]
    assert {(s.master_addr, s.master_port) for s in starts} == {("h", 1)}
    desk = await desk.reopened()
    await desk.settle()
    await desk.wait(61)
    assert (await desk.commands())[4:] == ["n1 stop g.t0 3", "n2 stop g.t1 3"], "the deadline outlives the process"


async def test_facts_that_came_while_placement_was_away(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    await desk.place("y", gpus=2)
    await desk.started("x", settle=False)
    await desk.exited("x", settle=False)
    await desk.emptied("x", settle=False)
    desk = await desk.reopened()
    await desk.settle()
    assert (await desk.decided("x"))[1:] == ["started", "exited succeeded exit_code", "released t0"]
    assert (await desk.decided("y"))[-1] == "granted n1"


async def test_a_request_for_another_pool_is_parked_not_swallowed(desk: PoolDesk) -> None:
    with pytest.raises(Permanent, match="local/other is not served here"):
        await desk.send(place_request("x", pool="other"))


async def unread_requests(desk: PoolDesk) -> list[Received]:
    records = await log_of(desk.runtime, registry.PLACEMENT_REQUESTS, desk.read[registry.PLACEMENT_REQUESTS])
    desk.read[registry.PLACEMENT_REQUESTS] = records[-1].record.offset + 1
    return records


async def test_what_a_process_in_the_pool_publishes_is_read_once(runtime: Runtime) -> None:
    """The whole service on the real bus: handlers, cycle and offsets."""
    desk = await PoolDesk.open(runtime)
    await desk.node("n1", gpus=2)
    service = await build(PlacementSettings(), runtime)
    ready = asyncio.Event()
    async with asyncio.timeout(20):
        running = asyncio.create_task(service.run(ready.set))
        try:
            await ready.wait()
            event = wrap(place_request("x"), event_id="evt-1", source="tests", time=desk.clock.now())
            await runtime.bus.publish([event])
            await until(lambda: _granted(desk), "granted")
            await desk.started("x", settle=False)
            await desk.exited("x", settle=False)
            await desk.emptied("x", settle=False)

            async def released() -> bool:
                return bool(await desk.decisions(types.AllocationReleased))

            await until(released, "released")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    await desk.check()
    assert await desk.decided("x") == ["granted n1", "started", "exited succeeded exit_code", "released t0"]
