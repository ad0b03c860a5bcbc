"""What a database error means for the caller."""

from typing import Literal

from sqlalchemy.exc import DBAPIError, InterfaceError

from yard_domain.errors import Retryable

_RETRYABLE_SQLSTATES = ("40", "08", "57", "53", "55P03", "25006")
"""Serialization and deadlock, connection, operator intervention (shutdown), resources (disk full, too many), lock."""


class database_errors:
    """Translates what a database error means for the caller into `Retryable`; others pass through unchanged."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if error is None or not is_retryable(error):
            return False
        raise Retryable(f"database: {_first_line(error)}") from error


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed once the database is well again."""
    if isinstance(error, DBAPIError):
        if error.connection_invalidated or isinstance(error, InterfaceError):
            return True
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        return state is not None and str(state).startswith(_RETRYABLE_SQLSTATES)
    return isinstance(error, ConnectionError | TimeoutError | FileNotFoundError) or _is_asyncpg_connection(error)


def _is_asyncpg_connection(error: BaseException) -> bool:
    """asyncpg raises its own errors while connecting, before SQLAlchemy can wrap them."""
    module = type(error).__module__
    if not module.startswith("asyncpg"):
        return False
    state = str(getattr(error, "sqlstate", None) or "08")
    return state.startswith(_RETRYABLE_SQLSTATES)


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
