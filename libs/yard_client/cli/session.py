"""What every command shares: the configured client, the clock, and the exit codes.

Exit codes: 0 done · 1 the job failed, or a check found something · 2 usage · 3 no server reached, or it could not
serve · 4 the server refused · 124 a wait ran out of time · 130 interrupted · 141 the reader of the output went away.
`yard run --wait` and `yard submit --wait` exit as the job did.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from yard_client.cli.output import notice
from yard_client.errors import AmbiguousJob, ClientError, NoSuchJob, NotConfigured, Refused

if TYPE_CHECKING:
    from yard_client.aio import AsyncYardClient
    from yard_client.client import YardClient
    from yard_client.config import ClientConfig

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141

RETRY_VARIABLE = "YARD_RETRY_SECONDS"
# One question is answered soon or not at all; whoever follows a job sits through a restart of the server.
QUESTION_RETRY_SECONDS = 5.0
FOLLOWING_RETRY_SECONDS = 300.0


def load_config() -> ClientConfig:
    """The configuration of this run; its warnings go to stderr. Raises NotConfigured."""
    from yard_client import config

    loaded = config.load(os.environ)
    for warning in loaded.warnings:
        notice(warning)
    return loaded


def connect(*, following: bool = False) -> YardClient:
    """A client for questions, or for following something that outlives a restart of the server."""
    from yard_client.client import YardClient
    from yard_client.retry import RetryPolicy

    return YardClient.from_config(load_config(), retry=RetryPolicy(budget_seconds=_retry_seconds(following)))


def connect_async() -> AsyncYardClient:
    """An asynchronous client for following. Its configuration was already loaded once, so it does not warn again."""
    from yard_client import config
    from yard_client.aio import AsyncYardClient
    from yard_client.retry import RetryPolicy

    policy = RetryPolicy(budget_seconds=_retry_seconds(following=True))
    return AsyncYardClient.from_config(config.load(os.environ), retry=policy)


def now() -> datetime:
    return datetime.now(UTC)


def exit_code_of(error: ClientError) -> int:
    match error:
        case Refused() | NoSuchJob() | AmbiguousJob():
            return EXIT_REFUSED
        case NotConfigured():
            return EXIT_USAGE
        case _:
            return EXIT_UNREACHABLE


def explain(error: ClientError) -> None:
    """Says on stderr what went wrong, field by field where the server named fields."""
    if isinstance(error, Refused) and error.errors:
        notice(f"{error.title}:")
        for item in error.errors:
            notice(f"  {item.get('field', '')}: {item.get('message', '')}")
        return
    notice(str(error))


def _retry_seconds(following: bool) -> float:
    value = os.environ.get(RETRY_VARIABLE, "")
    try:
        return max(0.0, float(value)) if value else (FOLLOWING_RETRY_SECONDS if following else QUESTION_RETRY_SECONDS)
    except ValueError:
        raise NotConfigured(f"{RETRY_VARIABLE} must be a number of seconds, not {value!r}") from None
