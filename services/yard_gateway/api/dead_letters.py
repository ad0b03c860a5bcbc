"""/v1/dlq: what services could not handle. Each service answers for its own; the gateway authorises, asks and joins."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import Field
from pydantic_core import to_json

from yard_domain.errors import Retryable
from yard_events.registry import CONSUMING_SERVICES
from yard_gateway.api.described import (
    DEAD_LETTER,
    DEAD_LETTERS,
    DEAD_LETTERS_REQUESTED,
    DISCARDED_LETTER,
    KEY_REQUESTED,
    answers,
)
from yard_gateway.api.jobs import JSON
from yard_gateway.api.parameters import Parameters
from yard_gateway.api.parts import AllParts, Caller
from yard_gateway.principals import Principal, Role
from yard_gateway.upstreams import away
from yard_runtime.dead_letters_api import LIMIT, Offset, Partition, Topic
from yard_runtime.http import Problem

router = APIRouter(tags=["dead letters"])

OWN = "gateway"

Ask = Callable[[str], Awaitable[Any]]


def _admin(principal: Caller) -> Principal:
    principal.require(Role.ADMIN)
    return principal


Admin = Annotated[Principal, Depends(_admin)]


class DeadLetterFilter(Parameters):
    service: str | None = Field(None, max_length=64, description="Only what this service parked.")
    key: str | None = Field(None, max_length=1024, pattern=r"^[^\x00]*$", description="Only records of this key.")

    def services(self) -> tuple[str, ...]:
        """Raises Problem 422 for a service that consumes nothing."""
        if self.service is None:
            return CONSUMING_SERVICES
        if self.service not in CONSUMING_SERVICES:
            message = f"must be one of {', '.join(CONSUMING_SERVICES)}"
            errors = [{"field": "service", "message": message}]
            raise Problem(422, "Invalid request", f"service: {message}", errors=errors)
        return (self.service,)

    def query(self) -> list[tuple[str, str]]:
        return [("key", self.key)] if self.key is not None else []


class DeadLetterList(DeadLetterFilter):
    limit: int = Field(100, ge=1, le=LIMIT)


@router.get(
    "/v1/dlq", summary="List dead letters, oldest first", responses=answers({200: DEAD_LETTERS}, 401, 403, 422, 503)
)
async def list_dead_letters(parts: AllParts, admin: Admin, query: Annotated[DeadLetterList, Query()]) -> Response:
    """A service that does not answer is named in `unavailable`; the others' are listed all the same."""
    asked = [("limit", str(query.limit)), *query.query()]

    async def of(service: str) -> Any:
        if service == OWN:
            return await parts.dead_letters.list(limit=query.limit, key=query.key)
        return await parts.upstreams.call(service, "GET", "/dead-letters", principal=admin, query=asked)

    found, silent = await _from_all(query.services(), of)
    items = [{"service": service, **item} for service, answer in found.items() for item in answer["items"]]
    items.sort(key=lambda item: (item["parked_at"], item["service"], item["topic"], item["partition"], item["offset"]))
    total = sum(answer["total"] for answer in found.values())
    return _json({"items": items[: query.limit], "total": total, "unavailable": silent})


@router.post(
    "/v1/dlq/retry",
    summary="Try everything again",
    status_code=202,
    responses=answers({202: DEAD_LETTERS_REQUESTED}, 401, 403, 422, 503),
)
async def retry_dead_letters(parts: AllParts, admin: Admin, query: Annotated[DeadLetterFilter, Query()]) -> Response:
    """Of all services or one, of all keys or one. What fails again stays parked with its new error."""

    async def of(service: str) -> Any:
        if service == OWN:
            return await parts.dead_letters.retry_all(key=query.key)
        return await parts.upstreams.call(service, "POST", "/dead-letters/retry", principal=admin, query=query.query())

    found, silent = await _from_all(query.services(), of)
    items = [{"service": service, "records": answer["records"]} for service, answer in found.items()]
    return _json({"items": items, "unavailable": silent}, 202)


async def _from_all(services: tuple[str, ...], ask: Ask) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What each answered, and those that did not. Raises Problem when one refuses."""

    async def one(service: str) -> Any:
        try:
            return await ask(service)
        except Retryable:
            return away(service)
        except Problem as problem:
            return problem

    async with asyncio.TaskGroup() as group:
        asked = {service: group.create_task(one(service)) for service in services}
    found: dict[str, Any] = {}
    silent: list[dict[str, str]] = []
    for service, task in asked.items():
        answer = task.result()
        if not isinstance(answer, Problem):
            found[service] = answer
        elif answer.status < 500:
            raise answer
        else:
            silent.append({"service": service, "detail": str(answer.body.get("detail", ""))})
    return found, silent


@router.get(
    "/v1/dlq/{service}/{topic}/{partition}/{offset}",
    summary="One dead letter",
    responses=answers({200: DEAD_LETTER}, 401, 403, 404, 422, 503),
)
async def show_dead_letter(
    parts: AllParts, admin: Admin, service: str, topic: Topic, partition: Partition, offset: Offset
) -> Response:
    """With its headers, and its value as text where it is JSON, else in base64."""
    if _known(service) == OWN:
        found = await parts.dead_letters.show(topic, partition, offset)
    else:
        found = await parts.upstreams.call(service, "GET", _path(topic, partition, offset), principal=admin)
    return _json({"service": service, **found})


@router.post(
    "/v1/dlq/{service}/{topic}/{partition}/{offset}/retry",
    summary="Try a key again",
    status_code=202,
    responses=answers({202: KEY_REQUESTED}, 401, 403, 404, 422, 503),
)
async def retry_dead_letter(
    parts: AllParts, admin: Admin, service: str, topic: Topic, partition: Partition, offset: Offset
) -> Response:
    """All that is parked of the record's key, in order, inside of the service. What fails again stays parked."""
    if _known(service) == OWN:
        found = await parts.dead_letters.retry(topic, partition, offset)
    else:
        path = f"{_path(topic, partition, offset)}/retry"
        found = await parts.upstreams.call(service, "POST", path, principal=admin)
    return _json({"service": service, **found}, 202)


@router.delete(
    "/v1/dlq/{service}/{topic}/{partition}/{offset}",
    summary="Discard a dead letter for good",
    responses=answers({200: DISCARDED_LETTER}, 401, 403, 404, 422, 503),
)
async def discard_dead_letter(
    parts: AllParts, admin: Admin, service: str, topic: Topic, partition: Partition, offset: Offset
) -> Response:
    """Its effect is lost; what is parked behind it is tried."""
    if _known(service) == OWN:
        found = await parts.dead_letters.discard(topic, partition, offset, by=admin.name)
    else:
        found = await parts.upstreams.call(service, "DELETE", _path(topic, partition, offset), principal=admin)
    return _json({"service": service, **found})


def _known(service: str) -> str:
    if service not in CONSUMING_SERVICES:
        raise Problem(404, "Not found", f"No service {service[:64]!r} has dead letters.")
    return service


def _path(topic: str, partition: int, offset: int) -> str:
    return f"/dead-letters/{topic}/{partition}/{offset}"


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type=JSON)
