"""What the owners answer: nodes, queues, projects, usage, audit. The gateway authorises, asks and joins."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from yard_gateway.api.described import AUDIT, NODE, NODES, PROJECT, PROJECTS, QUEUE, QUEUE_BODY, QUEUES, USAGE, answers
from yard_gateway.api.jobs import JSON
from yard_gateway.api.parameters import Parameters, known_kind
from yard_gateway.api.parts import AllParts, Caller, Parts
from yard_gateway.principals import Principal, Role
from yard_gateway.request_body import parse, read_body, reader_for, validate

router = APIRouter(tags=["fleet"])


def _json(value: Any) -> Response:
    return Response(to_json(value), media_type=JSON)


@router.get("/v1/nodes", summary="Nodes and their devices", responses=answers({200: NODES}, 401, 503))
async def nodes(parts: AllParts, principal: Caller) -> Response:
    """Inventory's nodes with placement's use of them. Jobs of projects that the caller does not see stay unnamed."""
    inventory = await parts.upstreams.call("inventory", "GET", "/nodes", principal=principal)
    placement = await parts.upstreams.call("placement", "GET", "/nodes", principal=principal)
    used = {str(item["node"]): item for item in placement["items"]}
    return _json({"items": [_joined(node, used.get(node["name"], {}), principal) for node in inventory["items"]]})


def _joined(node: dict[str, Any], used: dict[str, Any], principal: Principal) -> dict[str, Any]:
    holders = {str(device["uuid"]): device for device in used.get("devices", ())}
    return node | {
        "cpus_used": used.get("cpus_used", 0),
        "memory_used_bytes": used.get("memory_used_bytes", 0),
        "devices": [_device(device, holders.get(device["uuid"], {}), principal) for device in node["devices"]],
    }


def _device(device: dict[str, Any], holder: dict[str, Any], principal: Principal) -> dict[str, Any]:
    shown = holder.get("job_id") is not None and principal.sees(holder.get("project") or "")
    return device | {
        "allocation_id": holder.get("allocation_id"),
        "job_id": holder["job_id"] if shown else None,
        "dirty": bool(holder.get("dirty", False)),
    }


async def _set_cordon(parts: Parts, principal: Principal, name: str, action: str) -> Response:
    principal.require(Role.ADMIN, Role.OPERATOR)
    path = f"/nodes/{known_kind('node', name)}/{action}"
    return _json(await parts.upstreams.call("inventory", "POST", path, principal=principal))


@router.post(
    "/v1/nodes/{name}/cordon",
    summary="Give the node no new work",
    responses=answers({200: NODE}, 401, 403, 404, 503),
)
async def cordon(parts: AllParts, principal: Caller, name: str) -> Response:
    return await _set_cordon(parts, principal, name, "cordon")


@router.post(
    "/v1/nodes/{name}/uncordon", summary="Take it back into use", responses=answers({200: NODE}, 401, 403, 404, 503)
)
async def uncordon(parts: AllParts, principal: Caller, name: str) -> Response:
    return await _set_cordon(parts, principal, name, "uncordon")


@router.get("/v1/queues", summary="Queues, their quota and use", responses=answers({200: QUEUES}, 401, 503))
async def queues(parts: AllParts, principal: Caller) -> Response:
    return _json(await parts.upstreams.call("admission", "GET", "/queues", principal=principal))


class QueueDocument(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_quota: Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class ProjectDocument(BaseModel):
    """A project has no settings yet."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def _document(parts: Parts, request: Request, model: type[BaseModel]) -> BaseModel:
    limits = parts.settings
    body = await read_body(request, limit=limits.max_body_bytes, timeout_seconds=limits.body_timeout_seconds)
    return validate(model, await parse(body or b"{}", reader_for(request, yaml=False)))


@router.put(
    "/v1/queues/{name}",
    summary="Make a queue, or change its quota",
    openapi_extra={"requestBody": QUEUE_BODY},
    responses=answers({200: QUEUE}, 401, 403, 404, 422, 503),
)
async def put_queue(request: Request, parts: AllParts, principal: Caller, name: str) -> Response:
    principal.require(Role.ADMIN, Role.OPERATOR)
    known_kind("queue", name)
    document = await _document(parts, request, QueueDocument)
    answer = await parts.upstreams.call(
        "admission", "PUT", f"/queues/{name}", principal=principal, body=document.model_dump()
    )
    parts.directory.learn_queues([name])
    return _json(answer)


@router.get("/v1/projects", summary="Projects", responses=answers({200: PROJECTS}, 401, 503))
async def projects(parts: AllParts, principal: Caller) -> Response:
    """The projects that the caller sees."""
    answer = await parts.upstreams.call("admission", "GET", "/projects", principal=principal)
    return _json({"items": [item for item in answer["items"] if principal.sees(item["name"])]})


@router.put("/v1/projects/{name}", summary="Make a project", responses=answers({200: PROJECT}, 401, 403, 404, 422, 503))
async def put_project(request: Request, parts: AllParts, principal: Caller, name: str) -> Response:
    principal.require(Role.ADMIN)
    known_kind("project", name)
    document = await _document(parts, request, ProjectDocument)
    answer = await parts.upstreams.call(
        "admission", "PUT", f"/projects/{name}", principal=principal, body=document.model_dump()
    )
    parts.directory.learn_projects([name])
    return _json(answer)


class UsageParameters(Parameters):
    """Billing validates the values; here they are only bounded."""

    project: list[str] = Field([], max_length=64)
    queue: list[str] = Field([], max_length=64)
    job: list[str] = Field([], max_length=64)
    since: str | None = Field(None, max_length=64, description="ISO 8601 with a zone.")
    until: str | None = Field(None, max_length=64, description="ISO 8601 with a zone.")
    group_by: str | None = Field(None, max_length=16, description="project, queue, job or model.")


@router.get("/v1/usage", summary="GPU time", responses=answers({200: USAGE}, 401, 422, 503))
async def usage(parts: AllParts, principal: Caller, query: Annotated[UsageParameters, Query()]) -> Response:
    """Exact GPU-seconds, of the projects that the caller sees."""
    items = [(name, value) for name in ("project", "queue", "job") for value in getattr(query, name)]
    items += [(name, value) for name in ("since", "until", "group_by") if (value := getattr(query, name)) is not None]
    return _json(await parts.upstreams.call("billing", "GET", "/usage", principal=principal, query=items))


@router.get("/v1/audit", summary="Check the invariants", responses=answers({200: AUDIT}, 401, 403, 503))
async def audit(parts: AllParts, principal: Caller) -> Response:
    """Takes a while: a finding counts only when a second reading shows it too."""
    principal.require(Role.ADMIN, Role.OPERATOR)
    seconds = parts.settings.audit_timeout_seconds
    return _json(await parts.upstreams.call("audit", "GET", "/audit", principal=principal, timeout_seconds=seconds))
