"""The connection pool of one process."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

IDLE_IN_TRANSACTION_SECONDS = 30.0
"""How long PostgreSQL waits for the next statement of an open transaction before it ends it, with its connection.

A process that is frozen, or cut off without a word, inside of a unit of work holds the rows of its terms, and whoever
takes over waits for them: this bounds how long. Honest units of work think for milliseconds between statements, and on
a starved machine for seconds. What comes of one that thinks for longer is what comes of any lost connection.
"""


def create_engine(
    database_url: str,
    *,
    application: str,
    pool_size: int = 8,
    idle_in_transaction_seconds: float = IDLE_IN_TRANSACTION_SECONDS,
) -> AsyncEngine:
    """An asyncpg-backed engine for `postgresql://…`.

    No pre-ping: a connection that died makes its unit of work fail as Retryable, which is the same path that a database
    dying in the middle takes, so there is one path to test.
    """
    url = database_url.replace("postgres://", "postgresql://", 1).replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=4,
        pool_timeout=30,
        pool_pre_ping=False,
        connect_args={
            "server_settings": {
                "application_name": application,
                "idle_in_transaction_session_timeout": str(round(idle_in_transaction_seconds * 1000)),
            },
            "timeout": 10,
        },
    )
    event.listen(engine.sync_engine, "checkout", _refuse_open_transactions)
    return engine


def _refuse_open_transactions(connection: Any, _record: object, _proxy: object) -> None:
    """A task that was cancelled while its BEGIN was under way leaves a connection that nobody knows to be inside of a
    transaction. The pool takes another one."""
    if connection.driver_connection.is_in_transaction():
        raise DisconnectionError("left inside of a transaction")
