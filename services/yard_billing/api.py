"""Billing's internal HTTP: usage. The gateway authorises; a principal bound to projects is bound to them here too."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import FastAPI, Header, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from yard_billing.settings import BillingSettings
from yard_billing.usage import Dimension, Usage, usage
from yard_domain.errors import InvalidField
from yard_domain.names import JOB_ID, NAME_RULE, is_name
from yard_store.unit_of_work import Store


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must be {NAME_RULE}")
    return value


def _job_id(value: str) -> str:
    if JOB_ID.fullmatch(value) is None:
        raise ValueError("must be a job's id: job- and 26 letters or digits")
    return value


def _instant(value: object) -> datetime:
    message = "must be an instant in ISO 8601 with its zone, such as 2026-03-01T00:00:00Z (a '+' is written %2B)"
    try:
        time = datetime.fromisoformat(str(value))
        if time.tzinfo is None or not 1900 <= time.year <= 9000:
            raise ValueError
        return time.astimezone(UTC)
    except ValueError:
        raise ValueError(message) from None


Name = Annotated[str, AfterValidator(_name)]
JobId = Annotated[str, AfterValidator(_job_id)]
Instant = Annotated[datetime, BeforeValidator(_instant)]


class UsageQuery(BaseModel):
    """What to sum; an unknown parameter is refused, for a misspelt filter must not look like an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: list[Name] | None = None
    queue: list[Name] | None = None
    job: list[JobId] | None = None
    since: Instant | None = None
    until: Instant | None = None
    group_by: Dimension = "project"


def build_api(store: Store, settings: BillingSettings) -> FastAPI:
    app = FastAPI(title="gpuyard billing", openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/usage")
    async def get_usage(
        query: Annotated[UsageQuery, Query()], x_yard_principal: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        if query.since is not None and query.until is not None and query.since >= query.until:
            raise InvalidField("until", "must be later than since")
        as_of = store.clock.now()
        async with store.reading() as connection:
            groups, total = await usage(
                connection,
                group_by=query.group_by,
                as_of=as_of,
                since=query.since,
                until=query.until,
                projects=_visible(query.project, _projects_of(x_yard_principal)),
                queues=query.queue,
                jobs=query.job,
            )
        return {
            "items": [{query.group_by: group.name, **_figures(group)} for group in groups],
            **{f"total_{name}": figure for name, figure in _figures(total).items()},
            "as_of": as_of,
        }

    return app


def _figures(group: Usage) -> dict[str, Any]:
    return {
        "gpu_seconds": exact_seconds(group.micros),
        "open_gpu_seconds": exact_seconds(group.open_micros),
        "jobs": group.jobs,
    }


def exact_seconds(micros: int) -> str:
    """Seconds as a decimal string with all six digits: JSON numbers are floats to most readers."""
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"


def _projects_of(principal: str | None) -> list[str] | None:
    """The projects that the principal `{name, role, projects}` may see; None: all of them."""
    if principal is None:
        return None
    try:
        projects: object = json.loads(principal)["projects"]
    except (ValueError, TypeError, KeyError):
        raise InvalidField("X-Yard-Principal", "must be a JSON object with name, role and projects") from None
    if projects is None:
        return None
    names = cast(list[object], projects) if isinstance(projects, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidField("X-Yard-Principal", "projects must be null or a list of names")
    return [str(name) for name in names]


def _visible(asked: list[str] | None, allowed: list[str] | None) -> list[str] | None:
    if allowed is None:
        return asked
    return allowed if asked is None else [name for name in asked if name in allowed]
