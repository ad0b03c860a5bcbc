"""/v1/me and /v1/tokens: who calls, and with which right."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from yard_gateway import tokens
from yard_gateway.api.described import ME, NEW_TOKEN, TOKEN_BODY, TOKENS, answers
from yard_gateway.api.jobs import JSON
from yard_gateway.api.parameters import Name
from yard_gateway.api.parts import AllParts, Caller
from yard_gateway.principals import BOUND_ROLES, Role
from yard_gateway.request_body import parse, read_body, reader_for, validate
from yard_runtime.http import Problem

router = APIRouter(tags=["access"])


class TokenDocument(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    role: Role
    projects: Annotated[list[Name], Field(max_length=256)] = []


@router.get("/v1/me", summary="Who am I", responses=answers({200: ME}, 401, 503))
async def me(principal: Caller) -> Response:
    value = {"name": principal.name, "role": principal.role.value, "projects": principal.project_list()}
    return Response(to_json(value), media_type=JSON)


@router.get("/v1/tokens", summary="Live tokens, without the tokens", responses=answers({200: TOKENS}, 401, 403, 503))
async def list_tokens(parts: AllParts, principal: Caller) -> Response:
    principal.require(Role.ADMIN)
    return Response(to_json({"items": await tokens.list_all(parts.reads)}), media_type=JSON)


@router.post(
    "/v1/tokens",
    summary="Make a token",
    openapi_extra={"requestBody": TOKEN_BODY},
    status_code=201,
    responses=answers({201: NEW_TOKEN}, 401, 403, 409, 413, 415, 422, 503),
)
async def create_token(request: Request, parts: AllParts, principal: Caller) -> Response:
    """The token itself is in this answer and nowhere else: only its digest is kept."""
    principal.require(Role.ADMIN)
    reader = reader_for(request, yaml=False)
    limits = parts.settings
    body = await read_body(request, limit=limits.max_body_bytes, timeout_seconds=limits.body_timeout_seconds)
    document = validate(TokenDocument, await parse(body, reader))
    _check_projects(document)
    for index, project in enumerate(document.projects):
        await parts.directory.require_project(project, field=f"projects.{index}")
    wanted = tokens.NewToken(document.name, document.role, tuple(sorted(set(document.projects))))
    token_id, token = await tokens.create(parts.store, wanted, principal.name)
    value = {
        "id": token_id,
        "name": wanted.name,
        "role": wanted.role.value,
        "projects": wanted.projects,
        "token": token,
    }
    return Response(to_json(value), 201, media_type=JSON)


def _check_projects(document: TokenDocument) -> None:
    bound = document.role in BOUND_ROLES
    if bound == bool(document.projects):
        return
    message = (
        f"the role {document.role} needs at least one project"
        if bound
        else f"the role {document.role} sees every project; leave projects out"
    )
    raise Problem(422, "Invalid request", f"projects: {message}", errors=[{"field": "projects", "message": message}])


@router.delete(
    "/v1/tokens/{token_id}",
    summary="Revoke a token, at once",
    status_code=204,
    responses=answers({}, 401, 403, 404, 409, 503),
)
async def revoke_token(parts: AllParts, principal: Caller, token_id: str) -> Response:
    principal.require(Role.ADMIN)
    known = token_id.isascii() and token_id.isprintable() and len(token_id) <= 64
    if not known or not await tokens.revoke(parts.store, token_id):
        raise Problem(404, "Not found", f"There is no token {token_id[:64]!r}.")
    parts.authenticator.forget()
    return Response(status_code=204)
