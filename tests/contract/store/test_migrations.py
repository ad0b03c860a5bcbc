"""Migrations: applied once, whoever comes first, and none is left half done."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.contract import MIGRATIONS, TABLES
from yard_runtime.service import Runtime
from yard_store.migrations import migrate

IN_A_PROCESS = """
import asyncio, sys
from pathlib import Path
from yard_store.engine import create_engine
from yard_store.migrations import migrate

async def main():
    engine = create_engine(sys.argv[1], application="migrating")
    await migrate(engine, "contract", Path(sys.argv[2]))
    await engine.dispose()

asyncio.run(main())
"""

SECOND = """
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.execute("CREATE TABLE contract.added (n int)")
    {more}
"""


async def versions(runtime: Runtime) -> list[str]:
    async with runtime.engine.connect() as connection:
        return list(await connection.scalars(sa.text("SELECT version_num FROM contract.alembic_version")))


async def test_a_second_run_changes_nothing(runtime: Runtime) -> None:
    for _ in range(2):
        await migrate(runtime.engine, "contract", MIGRATIONS)
    assert await versions(runtime) == ["0001"]


async def test_two_processes_that_start_together(runtime: Runtime, database: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", IN_A_PROCESS, database, str(MIGRATIONS), stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    results = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0, 0], results
    assert await versions(runtime) == ["0001"]


async def test_several_schemas_migrated_at_once_in_one_process(runtime: Runtime, second_runtime: Runtime) -> None:
    bus_migrations = Path(sys.modules["yard_bus"].__file__ or "").parent / "migrations"
    async with asyncio.TaskGroup() as group:
        for engine in (runtime.engine, second_runtime.engine):
            group.create_task(migrate(engine, "contract", MIGRATIONS))
            group.create_task(migrate(engine, "yard_bus", bus_migrations))
    assert await versions(runtime) == ["0001"]


async def test_the_migration_and_the_declared_tables_are_the_same(runtime: Runtime) -> None:
    await migrate(runtime.engine, "contract", MIGRATIONS)

    def compare(connection: sa.Connection) -> None:
        inspector = sa.inspect(connection)
        for table in TABLES.metadata.tables.values():
            found = {column["name"]: column for column in inspector.get_columns(table.name, "contract")}
            assert set(found) == {column.name for column in table.columns}
            for column in table.columns:
                kinds = [kind.compile(dialect=connection.dialect) for kind in (found[column.name]["type"], column.type)]
                assert kinds[0] == kinds[1], (table.name, column.name)
                if table.name != "effects":
                    assert found[column.name]["nullable"] == column.nullable, (table.name, column.name)
            key = inspector.get_pk_constraint(table.name, "contract")["constrained_columns"]
            assert key == [column.name for column in table.primary_key.columns]
            indexes = {index["name"] for index in inspector.get_indexes(table.name, "contract")}
            assert indexes == {index.name for index in table.indexes}

    async with runtime.engine.connect() as connection:
        await connection.run_sync(compare)


async def test_a_newer_version_is_applied_on_top(runtime: Runtime, tmp_path: Path) -> None:
    await migrate(runtime.engine, "contract", MIGRATIONS)
    newer = tmp_path / "100% new"  # a percent sign means something to Alembic's options
    shutil.copytree(MIGRATIONS, newer)
    (newer / "0002_added.py").write_text(SECOND.format(more=""))
    await migrate(runtime.engine, "contract", newer)
    assert await versions(runtime) == ["0002"]


async def test_a_migration_that_fails_leaves_nothing_behind(runtime: Runtime, tmp_path: Path) -> None:
    await migrate(runtime.engine, "contract", MIGRATIONS)
    newer = tmp_path / "newer"
    shutil.copytree(MIGRATIONS, newer)
    (newer / "0002_added.py").write_text(SECOND.format(more='raise RuntimeError("half way")'))
    with pytest.raises(RuntimeError, match="half way"):
        await migrate(runtime.engine, "contract", newer)
    assert await versions(runtime) == ["0001"]
    async with runtime.engine.connect() as connection:
        assert await connection.scalar(sa.text("SELECT to_regclass('contract.added')")) is None
