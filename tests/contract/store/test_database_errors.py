"""What an error of the database means: try again, or never."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from support.contract import EFFECTS, TABLES
from yard_domain.errors import Retryable
from yard_runtime.service import Runtime
from yard_store.database_errors import OutcomeUnknown, database_errors
from yard_store.engine import create_engine
from yard_store.unit_of_work import Store

SQLSTATES = {
    "40001": True,  # serialization failure
    "40P01": True,  # deadlock
    "53100": True,  # disk full
    "53200": True,  # out of memory
    "53300": True,  # too many connections
    "57014": True,  # query cancelled, also by a statement timeout
    "57P01": True,  # shutdown by an operator
    "57P03": True,  # starting up
    "08006": True,  # connection failure
    "55P03": True,  # lock not available
    "25006": True,  # read-only: a standby that is to become the primary
    "25P03": True,  # the transaction idled for too long, and its connection is gone
    "23505": False,  # unique violation
    "23503": False,  # foreign key violation
    "23514": False,  # check violation
    "22003": False,  # number out of range
    "42601": False,  # syntax
    "42P01": False,  # no such table
    "42501": False,  # no privilege
    "XX000": False,  # internal error
    "P0001": False,  # raised by a function of ours
}


@pytest.mark.parametrize(("state", "retryable"), SQLSTATES.items())
async def test_an_sqlstate_decides(store: Store, state: str, retryable: bool) -> None:
    with pytest.raises(Retryable if retryable else DBAPIError) as caught:
        async with store.unit_of_work() as uow:
            await uow.connection.execute(
                sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{state}'; END $$")
            )
    assert "made up" in str(caught.value)
    assert not isinstance(caught.value, OutcomeUnknown), "it did not happen at the commit"


async def test_a_real_unique_violation_is_not_retryable(store: Store) -> None:
    offset = sa.insert(TABLES.offsets).values(topic="t", partition=0, incarnation="i", next_offset=1)
    with pytest.raises(IntegrityError):
        async with store.unit_of_work() as uow:
            await uow.connection.execute(offset)
            await uow.connection.execute(offset)


@pytest.mark.parametrize("value", [2**40, "text", float("nan"), object()], ids=["too large", "text", "nan", "object"])
async def test_a_value_that_cannot_be_bound_is_not_retryable(store: Store, value: object) -> None:
    """asyncpg has it among its interface errors, like those about lost connections."""
    with pytest.raises(DBAPIError):
        async with store.unit_of_work() as uow:
            await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=value))


async def test_a_real_deadlock_is_retryable_for_its_victim(store: Store, second_store: Store) -> None:
    async with store.unit_of_work() as uow:
        for key in ("a", "b"):
            await uow.connection.execute(sa.insert(EFFECTS).values(key=key, n=0))
    barrier = asyncio.Barrier(2)

    async def lock(store: Store, *keys: str) -> None:
        async with store.unit_of_work() as uow:
            await uow.connection.execute(sa.text("SET LOCAL deadlock_timeout = '20ms'"))
            for key in keys:
                await uow.connection.execute(sa.update(EFFECTS).where(EFFECTS.c.key == key).values(n=EFFECTS.c.n + 1))
                if key == keys[0]:
                    await barrier.wait()

    async with asyncio.timeout(20):
        results = await asyncio.gather(lock(store, "a", "b"), lock(second_store, "b", "a"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "Retryable"]


async def test_a_backend_that_was_terminated_is_retryable(store: Store, second_store: Store) -> None:
    with pytest.raises(Retryable) as caught:
        async with store.unit_of_work() as uow:
            pid = await uow.connection.scalar(sa.text("SELECT pg_backend_pid()"))
            async with second_store.reading() as connection:
                await connection.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            await uow.connection.execute(sa.text("SELECT 1"))
    assert not isinstance(caught.value, OutcomeUnknown)
    async with store.unit_of_work() as uow:
        assert await uow.connection.scalar(sa.text("SELECT 1")) == 1


async def test_a_refused_connection_is_retryable(
    runtime: Runtime, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    urls = [f"postgresql://u@127.0.0.1:{unused_tcp_port_factory()}/db", f"postgresql://u@/db?host={tmp_path}"]
    for url in urls:
        engine = create_engine(url, application="tests")
        with pytest.raises(Retryable, match="database"):
            async with (
                Runtime(engine, runtime.bus, runtime.clock, runtime.ids, "t", "t")
                .store(TABLES, "contract")
                .unit_of_work()
            ):
                raise AssertionError("there is no database")
        await engine.dispose()


async def test_an_exhausted_pool_is_retryable(runtime: Runtime) -> None:
    """It says that the process is busy, not that the event is bad."""
    engine = create_async_engine(runtime.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    async with engine.connect():
        with pytest.raises(Retryable):
            async with (
                Runtime(engine, runtime.bus, runtime.clock, runtime.ids, "t", "t")
                .store(TABLES, "contract")
                .unit_of_work()
            ):
                raise AssertionError("the only connection is taken")
    await engine.dispose()


async def test_a_database_that_does_not_exist_is_not_retryable(runtime: Runtime) -> None:
    engine = create_engine(
        runtime.engine.url.set(drivername="postgresql", database="nowhere").render_as_string(hide_password=False),
        application="tests",
    )
    with pytest.raises(Exception, match="does not exist") as caught, database_errors():
        async with engine.connect():
            raise AssertionError("there is no such database")
    assert not isinstance(caught.value, Retryable)
    await engine.dispose()


async def opens_a_missing_file() -> None:
    open("/does/not/exist").close()


async def looks_up() -> None:
    {}["missing"]


@pytest.mark.parametrize(("work", "kind"), [(opens_a_missing_file, FileNotFoundError), (looks_up, KeyError)])
async def test_errors_of_the_caller_pass_unchanged(
    store: Store, work: Callable[[], Awaitable[None]], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        async with store.unit_of_work():
            await work()
