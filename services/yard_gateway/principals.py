"""Who calls, and what that caller may do."""

import json
from dataclasses import dataclass
from enum import StrEnum

from yard_runtime.http import Problem


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    SUBMITTER = "submitter"
    VIEWER = "viewer"


BOUND_ROLES = frozenset({Role.SUBMITTER, Role.VIEWER})
"""Roles that see only the projects of their token."""


@dataclass(frozen=True, slots=True)
class Principal:
    """`projects`: what a bound role sees; None for the roles that see everything."""

    token_id: str
    name: str
    role: Role
    projects: frozenset[str] | None

    def sees(self, project: str | None) -> bool:
        """Whether a fact of `project` may be shown; a fact of no project (a node's) is everybody's."""
        return project is None or self.projects is None or project in self.projects

    def require(self, *roles: Role) -> None:
        """Raises Problem 403 unless the caller has one of the roles."""
        if self.role not in roles:
            raise Problem(403, "Forbidden", f"Your role is {self.role}; this needs {' or '.join(sorted(roles))}.")

    def require_submit(self, project: str) -> None:
        """Raises Problem 403. Says nothing about whether another project exists."""
        self.require(Role.ADMIN, Role.OPERATOR, Role.SUBMITTER)
        if not self.sees(project):
            message = f"your token is bound to {', '.join(sorted(self.projects or ()))}"
            raise Problem(
                403,
                "Forbidden",
                f"You may not submit to project {project!r}: {message}.",
                errors=[{"field": "project", "message": message}],
            )

    def project_list(self) -> list[str] | None:
        return sorted(self.projects) if self.projects is not None else None

    def header(self) -> str:
        """The value of X-Yard-Principal, by which owners know for whom the gateway asks."""
        return json.dumps({"name": self.name, "role": self.role.value, "projects": self.project_list()})


def unauthorized(detail: str) -> Problem:
    challenge = 'Bearer realm="gpuyard", error="invalid_token"'
    return Problem(401, "Unauthorized", detail, headers={"WWW-Authenticate": challenge})
