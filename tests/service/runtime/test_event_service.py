"""The loops of a service: active, inactive, active again; and which errors are not its own to swallow."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from support.contract import MANY, ONE, OUT, TABLES, Recorder, contract_store, event, until
from support.virtual_clock import VirtualClock
from yard_domain.errors import Fenced, Retryable
from yard_runtime.gauges import GAUGES_EVERY_SECONDS
from yard_runtime.service import EventService, Runtime, causes
from yard_store.unit_of_work import Store, UnitOfWork


@pytest.fixture
async def store(runtime: Runtime) -> Store:
    await runtime.bus.ensure_topics([ONE, MANY, OUT])
    return await contract_store(runtime)


@asynccontextmanager
async def running(service: EventService, ready: Callable[[], None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(service.run(ready))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def service(store: Store, runtime: Runtime, **parts: object) -> EventService:
    return EventService("contract", store, runtime.bus, "one", {ONE.name: Recorder()}, **parts)  # type: ignore[arg-type]


class Activation:
    """`on_activate` that raises what it is given, one after the other, and then nothing."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)

    async def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


async def test_it_is_ready_when_it_is_active_and_not_before(runtime: Runtime, store: Store) -> None:
    order: list[str] = []
    ready = asyncio.Event()

    async def activate() -> None:
        order.append("activated")

    def is_ready() -> None:
        order.append("ready")
        ready.set()

    one = service(store, runtime, on_activate=activate)
    assert one.problems()
    async with running(one, is_ready):
        await ready.wait()
        assert (order, one.problems()) == (["activated", "ready"], [])
    assert one.problems()


async def test_a_standby_is_not_ready(runtime: Runtime, second_runtime: Runtime, store: Store) -> None:
    active, standby = asyncio.Event(), asyncio.Event()
    await second_runtime.bus.load_topics()  # type: ignore[attr-defined]
    second = service(second_runtime.store(TABLES, "contract"), second_runtime)
    async with running(service(store, runtime), active.set):
        await active.wait()
        async with running(second, standby.set):
            async with runtime.bus.session("someone else", [ONE.name]):
                assert not standby.is_set()
            assert "another instance" in second.problems()[0]


async def test_back_off_grows_while_it_fails_and_begins_anew_after_it_was_well(runtime: Runtime, store: Store) -> None:
    clock = VirtualClock()
    timed = replace(runtime, clock=clock).store(TABLES, "contract")
    ready = asyncio.Event()
    activation = Activation(*(Retryable("away") for _ in range(8)))
    async with running(service(timed, runtime, on_activate=activation), ready.set):
        for _ in range(8):
            await clock.someone_sleeps()
            clock.advance(clock.sleeps[-1])
        await ready.wait()
        pauses = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        assert clock.sleeps[:8] == pauses
        ready.clear()
        clock.advance(3600)
        async with runtime.engine.begin() as connection:
            await connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = 'yard_bus listener' AND datname = current_database()"
            )
        # Its gauges are read at times of their own.
        await until(lambda: [s for s in clock.sleeps[8:] if s < GAUGES_EVERY_SECONDS], "it pauses")
        assert [s for s in clock.sleeps[8:] if s < GAUGES_EVERY_SECONDS] == [0.05]
        clock.advance(0.05)
        await ready.wait()


@pytest.mark.parametrize("error", [Retryable("away"), Fenced("taken over")], ids=lambda error: type(error).__name__)
async def test_losing_its_place_is_no_failure(runtime: Runtime, store: Store, error: Exception) -> None:
    ready = asyncio.Event()
    grouped = ExceptionGroup("outer", [ExceptionGroup("inner", [error])])
    activation = Activation(error, grouped)
    async with running(service(store, runtime, on_activate=activation, backoff_first_seconds=0.001), ready.set) as task:
        async with asyncio.timeout(20):
            await ready.wait()
        assert not task.done()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        ExceptionGroup("both", [Retryable("away"), ValueError("a bug")]),
        ExceptionGroup(
            "all", [Fenced("taken over"), ExceptionGroup("inner", [Retryable("away"), ValueError("a bug")])]
        ),
    ],
    ids=["alone", "beside a retryable one", "deep inside"],
)
async def test_an_error_of_another_kind_ends_it_also_in_company(
    runtime: Runtime, store: Store, error: Exception
) -> None:
    async with running(service(store, runtime, on_activate=Activation(error)), lambda: None) as task:
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        raised = task.exception()
    assert raised is not None
    assert causes(raised) == ["a bug"]


async def test_an_error_of_a_cycle_ends_it(runtime: Runtime, store: Store) -> None:
    async def cycle(_uow: UnitOfWork, _scope: str) -> bool:
        raise ZeroDivisionError("cycle")

    async with running(service(store, runtime, scopes={"pool": cycle}), lambda: None) as task:
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        raised = task.exception()
    assert raised is not None
    assert causes(raised) == ["cycle"]


async def _in_the_handler(store: Store, runtime: Runtime, reached: asyncio.Event) -> EventService:
    async def waits(_n: int, _uow: UnitOfWork) -> None:
        reached.set()
        await asyncio.Event().wait()

    await runtime.bus.publish([event(1)])
    return EventService("contract", store, runtime.bus, "one", {ONE.name: Recorder(waits)})


async def _in_the_cycle(store: Store, runtime: Runtime, reached: asyncio.Event) -> EventService:
    async def cycle(_uow: UnitOfWork, _scope: str) -> bool:
        reached.set()
        await asyncio.Event().wait()
        return False

    return service(store, runtime, scopes={"pool": cycle})


async def _at_rest(store: Store, runtime: Runtime, reached: asyncio.Event) -> EventService:
    async def activate() -> None:
        reached.set()

    return service(store, runtime, on_activate=activate)


MOMENTS: dict[str, Callable[[Store, Runtime, asyncio.Event], Awaitable[EventService]]] = {
    "in a handler": _in_the_handler,
    "in a cycle": _in_the_cycle,
    "at rest": _at_rest,
}


@pytest.mark.parametrize("moment", list(MOMENTS))
async def test_cancellation_is_clean_at_any_moment(
    runtime: Runtime, second_runtime: Runtime, store: Store, moment: str
) -> None:
    reached = asyncio.Event()
    one = await MOMENTS[moment](store, runtime, reached)
    task = asyncio.create_task(one.run(lambda: None))
    async with asyncio.timeout(20):
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Its place is free, its connections are back, no transaction of its is open, nothing of it runs on.
        await second_runtime.bus.load_topics()  # type: ignore[attr-defined]
        async with second_runtime.bus.session("contract", [ONE.name]):
            assert asyncio.all_tasks() == {asyncio.current_task()}
        async with store.unit_of_work() as uow:
            uow.mark_dirty("pool")
    assert runtime.engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_stopped_partition_makes_it_unwell_but_not_dead(runtime: Runtime, store: Store) -> None:
    async with store.unit_of_work() as uow:
        ref = await _ref(runtime)
        await uow.advance(ONE.name, 0, None, 77, ref)
    recorder = Recorder()
    one = EventService("contract", store, runtime.bus, "one", {ONE.name: Recorder(), MANY.name: recorder})
    async with running(one, lambda: None) as task:
        await until(lambda: any("77" in problem for problem in one.problems()), "it says so")
        await runtime.bus.publish([event(1, topic=MANY.name)])
        await recorder.until(1)
        assert not task.done()


async def _ref(runtime: Runtime) -> str:
    async with runtime.bus.session(None, [ONE.name]) as session:
        refs = await anext(aiter(session.assignments()))
    return next(iter(refs)).incarnation
