"""What the routes work with, and who calls them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from yard_domain.names import JOB_ID
from yard_gateway import read_model
from yard_gateway.agent_logs import AgentLogs
from yard_gateway.database import Reads
from yard_gateway.directory import Directory
from yard_gateway.feed import Feed
from yard_gateway.principals import Principal
from yard_gateway.settings import GatewaySettings
from yard_gateway.submissions import SubmitBatcher
from yard_gateway.tokens import Authenticator
from yard_gateway.upstreams import Upstreams
from yard_runtime.dead_letters_api import DeadLetters
from yard_runtime.http import Problem
from yard_store.unit_of_work import Store


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a request may need. `store` is for the writes of requests; the consumer has one of its own, so
    that a request need not wait for a batch of facts. `dead_letters` are the gateway's own. `waiting_for` names what is
    not up yet."""

    settings: GatewaySettings
    store: Store
    reads: Reads
    authenticator: Authenticator
    directory: Directory
    batcher: SubmitBatcher
    feed: Feed
    upstreams: Upstreams
    dead_letters: DeadLetters
    logs: AgentLogs
    monotonic: Callable[[], float]
    waiting_for: Callable[[], list[str]]


_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token made with POST /v1/tokens.")


def parts_of(request: Request) -> Parts:
    parts = request.app.state.parts
    if parts is None:
        raise Problem(503, "Service unavailable", "This application only describes the API.")
    return parts


async def _caller(
    request: Request, _documented: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Principal:
    return await parts_of(request).authenticator.principal(request.headers.get("authorization"))


Caller = Annotated[Principal, Depends(_caller)]
AllParts = Annotated[Parts, Depends(parts_of)]


async def visible_job(parts: Parts, principal: Principal, job_id: str) -> Any:
    """The job's row. Raises Problem 404, the same for one that does not exist and one of another's project."""
    row = await read_model.load_job(parts.reads, job_id) if JOB_ID.fullmatch(job_id) else None
    if row is None or not principal.sees(row.project):
        raise Problem(404, "Not found", f"There is no job {job_id[:64]!r}.")
    return row
