"""Alembic per service schema: each service brings its `migrations/` folder, and a start applies what is missing."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import AsyncEngine

from yard_store.database_errors import database_errors

_ENVIRONMENT = Path(__file__).parent / "alembic"
_LOCK = 0x59415244
"""Serialises migrations of all schemas, so that processes starting together wait for one another."""


def _upgrade(connection: sa.Connection, schema: str, versions: Path) -> None:
    config = Config()
    # Alembic's options are interpolated: a percent sign in a path must be doubled.
    config.set_main_option("script_location", str(_ENVIRONMENT).replace("%", "%%"))
    config.set_main_option("version_locations", str(versions).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    command.upgrade(config, "head")


async def migrate(engine: AsyncEngine, schema: str, versions: Path) -> None:
    """Bring `schema` to the newest version found in the folder `versions`, in one transaction."""
    with database_errors():
        async with engine.begin() as connection:
            await connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            await connection.execute(sa.text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
            await connection.run_sync(_upgrade, schema, versions)
