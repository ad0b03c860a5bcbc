"""What query and path values may look like."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from yard_domain.names import JOB_ID, NAME_RULE, is_name
from yard_runtime.http import Problem

MAX_SEQ = 2**62


def _a_name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must be {NAME_RULE}")
    return value


def _a_job_id(value: str) -> str:
    if JOB_ID.fullmatch(value) is None:
        raise ValueError("must be a job's id: job- and 26 letters or digits")
    return value


Name = Annotated[str, AfterValidator(_a_name)]
JobId = Annotated[str, AfterValidator(_a_job_id)]


class Parameters(BaseModel):
    """An unknown parameter is refused: a misspelt filter must not look like an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def known_kind(kind: str, name: str) -> str:
    """The name from a path. Raises Problem 404 for what cannot be the name of anything."""
    if not is_name(name):
        raise Problem(404, "Not found", f"There is no {kind} {name[:64]!r}.")
    return name
