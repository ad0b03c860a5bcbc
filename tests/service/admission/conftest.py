"""A desk at admission. One database serves all tests of this folder, emptied before each: making one costs more than
most tests here take."""

import asyncio
import secrets
from collections.abc import Iterator

import asyncpg
import pytest

from conftest import with_database
from support.admission import Desk
from yard_runtime.service import Runtime


async def _execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="package")
def shared_database(postgres_server: str) -> Iterator[str]:
    name = f"admission_{secrets.token_hex(4)}"
    asyncio.run(_execute(postgres_server, f"CREATE DATABASE {name} STRATEGY file_copy"))
    yield with_database(postgres_server, name)
    asyncio.run(_execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def database(shared_database: str) -> str:
    schemas = ("admission", "yard_bus")
    await _execute(shared_database, *(f"DROP SCHEMA IF EXISTS {schema} CASCADE" for schema in schemas))
    return shared_database


@pytest.fixture
async def desk(runtime: Runtime) -> Desk:
    """Queue `default` with a quota of 4 GPUs; reasons are told at once."""
    return await Desk.open(runtime)
