"""What people do about one service's dead letters: list, show, retry, discard. Served by every instance."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Path, Query
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from yard_bus import dead_letters
from yard_bus.dead_letters import OfKey
from yard_runtime.http import Problem
from yard_store.unit_of_work import Store

_log = structlog.get_logger("yard.dead_letters")

LIMIT = 1000

Topic = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Partition = Annotated[int, Path(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Path(ge=0, le=2**63 - 1)]
Key = Annotated[str | None, Query(max_length=1024, pattern=r"^[^\x00]*$")]

_LISTED = ("topic", "partition", "key", "type", "value_bytes", "error")


class DeadLetters:
    """The dead letters of one service's store, as JSON. What is decided reaches the active instance by itself.

    Decisions raise Retryable where that would not be so: on a bus whose instances do not hear of one another only the
    active one, `instance` owning `scope`, takes them.
    """

    def __init__(self, store: Store, *, scope: str, instance: str) -> None:
        self._store = store
        self._scope = scope
        self._instance = instance

    async def list(self, *, limit: int, key: str | None) -> dict[str, Any]:
        """The oldest `limit` of them, without their bytes, and how many there are."""
        async with self._store.reading() as connection:
            rows = await dead_letters.list_parked(connection, self._store.tables, limit=limit, key=key)
            total = await dead_letters.count_parked(connection, self._store.tables, key=key)
        return {"items": [_listed(row) for row in rows], "total": total}

    async def show(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """One with all that it came with. `behind`: how many of its key came after it. Raises Problem 404."""
        tables = self._store.tables
        async with self._store.reading() as connection:
            row = await dead_letters.show_parked(connection, tables, topic, partition, offset)
            if row is None:
                raise _none_there(topic, partition, offset)
            behind = await dead_letters.count_behind(connection, tables, OfKey(topic, partition, row["key"]), offset)
        value = row.pop("value")
        found = _listed(row | {"value_bytes": len(value)}) | {"headers": row["headers"], "behind": behind}
        return found | _readable(value)

    async def retry(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Have its key tried again. Raises Problem 404."""
        tables = self._store.tables
        async with self._store.unit_of_work() as uow:
            await uow.hold(self._scope, self._instance)
            row = await dead_letters.show_parked(uow.connection, tables, topic, partition, offset)
            if row is None:
                raise _none_there(topic, partition, offset)
            records = await dead_letters.request_retry(uow, tables, OfKey(topic, partition, row["key"]))
        return {"key": row["key"], "records": records}

    async def retry_all(self, *, key: str | None) -> dict[str, Any]:
        """Have everything tried again, or one key in all topics."""
        async with self._store.unit_of_work() as uow:
            await uow.hold(self._scope, self._instance)
            return {"records": await dead_letters.request_retries(uow, self._store.tables, key=key)}

    async def discard(self, topic: str, partition: int, offset: int, *, by: str) -> dict[str, Any]:
        """Drop one for good. `behind`: how many of its key came after it. Raises Problem 404."""
        tables = self._store.tables
        async with self._store.unit_of_work() as uow:
            await uow.hold(self._scope, self._instance)
            row = await dead_letters.show_parked(uow.connection, tables, topic, partition, offset)
            key = OfKey(topic, partition, "" if row is None else row["key"])
            if row is None or not await dead_letters.discard(uow, tables, key, offset, by=by):
                raise _none_there(topic, partition, offset)
            behind = await dead_letters.count_behind(uow.connection, tables, key, offset)
        _log.warning(
            "dead letter discarded", by=by, schema=tables.schema, topic=topic, partition=partition, offset=offset
        )
        return _listed(row | {"value_bytes": len(row["value"])}) | {"behind": behind}


class _Principal(BaseModel):
    name: str = "unknown"


def dead_letters_router(office: DeadLetters) -> APIRouter:
    """`/dead-letters` of one service's internal HTTP. The gateway authorises and says for whom it asks."""
    router = APIRouter(prefix="/dead-letters")

    @router.get("")
    async def list_all(limit: Annotated[int, Query(ge=1, le=LIMIT)] = 100, key: Key = None) -> dict[str, Any]:
        return await office.list(limit=limit, key=key)

    @router.post("/retry")
    async def retry_all(key: Key = None) -> dict[str, Any]:
        return await office.retry_all(key=key)

    @router.get("/{topic}/{partition}/{offset}")
    async def show(topic: Topic, partition: Partition, offset: Offset) -> dict[str, Any]:
        return await office.show(topic, partition, offset)

    @router.post("/{topic}/{partition}/{offset}/retry")
    async def retry(topic: Topic, partition: Partition, offset: Offset) -> dict[str, Any]:
        return await office.retry(topic, partition, offset)

    @router.delete("/{topic}/{partition}/{offset}")
    async def discard(
        topic: Topic, partition: Partition, offset: Offset, x_yard_principal: Annotated[str, Header()] = "{}"
    ) -> dict[str, Any]:
        return await office.discard(topic, partition, offset, by=_caller(x_yard_principal))

    return router


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    requested: datetime | None = row["retry_requested_at"]
    return {name: row[name] for name in _LISTED} | {
        "offset": row["log_offset"],
        "parked_at": row["parked_at"].isoformat(),
        "retry_requested_at": requested.isoformat() if requested is not None else None,
    }


def _readable(value: bytes) -> dict[str, str]:
    """JSON as the text that it is, which people can read and compare; anything else in base64."""
    try:
        from_json(value)
        return {"value": value.decode(), "value_encoding": "utf-8"}
    except ValueError:
        return {"value": base64.b64encode(value).decode(), "value_encoding": "base64"}


def _caller(principal: str) -> str:
    try:
        return _Principal.model_validate_json(principal).name
    except ValidationError:
        return "unknown"


def _none_there(topic: str, partition: int, offset: int) -> Problem:
    return Problem(404, "Not found", f"No dead letter is at {topic}/{partition}@{offset}.")
