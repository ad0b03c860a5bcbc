"""Signals between the instances of one service: what one committed, the others hear of.

Only hints travel (a scope is dirty, the outbox has something, jobs changed), as NOTIFY inside of the transaction that
made them true. A hint can come twice or for nothing; what must not be missed is looked for when a listener starts.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from yard_domain.errors import Retryable
from yard_store.database_errors import database_errors

_NOTIFY = sa.text("SELECT pg_notify(:channel, :payload)")
_PAYLOAD_BYTES = 7900
"""PostgreSQL takes less than 8000 bytes."""

ANY = "*"
"""Instead of keys, when there are too many to name."""

LISTENING = "listening"
"""The kind of the first thing that is heard."""

Hints = Mapping[str, Sequence[str]]
"""Kind of news → keys, such as {"scope": ["root"], "outbox": [""]}."""


async def send(connection: AsyncConnection, schema: str, instance: str, hints: Hints) -> None:
    """Inside of a transaction: delivered when it commits."""
    payload = json.dumps([instance, {kind: list(keys) for kind, keys in hints.items()}], separators=(",", ":"))
    if len(payload.encode()) > _PAYLOAD_BYTES:
        payload = json.dumps([instance, {kind: [ANY] for kind in hints}], separators=(",", ":"))
    await connection.execute(_NOTIFY, {"channel": _channel(schema), "payload": payload})


async def listen(engine: AsyncEngine, schema: str, instance: str, heard: Callable[[str, str], None]) -> None:
    """Call `heard(kind, key)` for what other instances committed, until cancelled. Raises Retryable when the connection
    is lost: hints may have been missed, so whoever listens again looks at everything once."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    driver: Any = asyncpg
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_notify(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        sender, hints = json.loads(payload)
        if sender == instance:
            return  # heard inside the process already
        for kind, keys in hints.items():
            for key in keys:
                heard(kind, key)

    def on_lost(_connection: Any) -> None:
        if not lost.done():
            lost.set_result(None)

    with database_errors():
        connection = await driver.connect(url, timeout=10, server_settings={"application_name": "yard signals"})
    try:
        with database_errors():
            connection.add_termination_listener(on_lost)
            await connection.add_listener(_channel(schema), on_notify)
        heard(LISTENING, ANY)
        await lost
        raise Retryable("database: the connection for signals was lost")
    finally:
        connection.remove_termination_listener(on_lost)
        connection.terminate()


def _channel(schema: str) -> str:
    return f"yard_{schema}"
