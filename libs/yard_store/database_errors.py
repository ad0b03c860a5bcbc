"""What a database error means for the caller."""

from typing import Any, Literal

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from yard_domain.errors import Retryable

_RETRYABLE_SQLSTATES = ("40", "08", "57", "53", "55P03", "25006", "25P03")
"""Serialization and deadlock, connection, operator intervention (shutdown), resources (disk full, too many), lock,
read-only, a transaction that idled for too long."""

_NOT_ACCEPTING_CONNECTIONS = "55000"
"""What connecting says to a database that an operator has closed for a while. In a statement the same code (object not
in prerequisite state) is final."""

_driver: Any = asyncpg
_NEVER: tuple[type[BaseException], ...] = (_driver.DataError, _driver.ClientConfigurationError)
"""asyncpg's own errors that say nothing about the connection: a value that cannot be bound, a URL that cannot be
meant. Its other errors without an SQLSTATE are about a closed or half-open connection."""


class OutcomeUnknown(Retryable):
    """The connection was lost at the COMMIT itself: the transaction may have happened. What was kept in memory is worth
    nothing now; offset and tables tell."""


class database_errors:
    """Translates what a database error means for the caller into `Retryable`; others pass through unchanged."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if error is None or not is_retryable(error):
            return False
        raise retryable(error) from error


def retryable(error: BaseException) -> Retryable:
    """A `Retryable` that carries the database's first line."""
    return Retryable(f"database: {_first_line(error)}")


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed once the database is well again."""
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        if isinstance(error, InterfaceError):
            return not isinstance(getattr(error.orig, "__cause__", None), _NEVER)
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if error.statement is None and state == _NOT_ACCEPTING_CONNECTIONS:
            return True
        return state is not None and str(state).startswith(_RETRYABLE_SQLSTATES)
    if isinstance(error, FileNotFoundError):
        # A server's unix socket that is not there yet; a file that somebody wanted to open would be named.
        return error.filename is None
    return isinstance(error, ConnectionError | TimeoutError | PoolTimeout) or _is_asyncpg_connection(error)


def _is_asyncpg_connection(error: BaseException) -> bool:
    """asyncpg raises its own errors while connecting, before SQLAlchemy can wrap them."""
    if not type(error).__module__.startswith("asyncpg") or isinstance(error, _NEVER):
        return False
    state = str(getattr(error, "sqlstate", None) or "08")
    return state.startswith(_RETRYABLE_SQLSTATES) or state == _NOT_ACCEPTING_CONNECTIONS


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
