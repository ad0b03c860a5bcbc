"""A unit of work that thinks for too long loses its connection, and with it the rows that others wait for."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from support.contract import EFFECTS, contract_store, effects, until
from yard_domain.errors import Retryable
from yard_runtime.service import Runtime
from yard_store.engine import create_engine
from yard_store.unit_of_work import UnitOfWork

NAME = "thinks for long"


async def _ended(runtime: Runtime) -> None:
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name").bindparams(name=NAME)

    async def gone() -> bool:
        async with runtime.engine.connect() as connection:
            return await connection.scalar(count) == 0

    await until(gone, "PostgreSQL ends the connection")


@pytest.mark.parametrize("then", ["another statement", "commit"])
async def test_it_is_tried_again_from_what_is_stored(runtime: Runtime, database: str, then: str) -> None:
    engine = create_engine(database, application=NAME, idle_in_transaction_seconds=0.2)
    store = await contract_store(replace(runtime, engine=engine))
    await engine.dispose()  # the schema was made under the same name

    async def write(uow: UnitOfWork, n: int) -> None:
        await uow.connection.execute(sa.insert(EFFECTS).values(key="a", n=n))

    async def think() -> None:
        async with store.unit_of_work() as uow:
            await write(uow, 1)
            await _ended(runtime)
            if then == "another statement":
                await write(uow, 2)

    with pytest.raises(Retryable):
        await think()
    async with store.unit_of_work() as uow:
        await write(uow, 3)
    assert await effects(store) == [("a", 3)]
    await engine.dispose()
