"""From what people type to a job: an id, the beginning of an id, or a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yard_client.errors import AmbiguousJob, NoSuchJob
from yard_domain.names import JOB_ID, is_name

if TYPE_CHECKING:
    from yard_client.client import YardClient
    from yard_client.models import Job

# A prefix is looked for among this many of the newest jobs; an older job has a whole id or a name.
PREFIX_SEARCH_JOBS = 2000
SHORTEST_PREFIX = 4


def find_job(client: YardClient, reference: str) -> Job:
    """The job meant by `reference`: an id, else the live or newest job of that name, else a unique id prefix.

    Raises Refused (unknown id), NoSuchJob or AmbiguousJob.
    """
    if JOB_ID.fullmatch(reference):
        return client.job(reference)
    job = _by_name(client, reference) or _by_prefix(client, reference)
    if job is None:
        raise NoSuchJob(
            f"no job is named {reference!r} and no id among the newest {PREFIX_SEARCH_JOBS} jobs begins so; "
            "`yard ps -a` lists jobs"
        )
    return client.job(job["id"])


def find_jobs(client: YardClient, references: Sequence[str]) -> list[Job]:
    return [find_job(client, reference) for reference in references]


def _by_name(client: YardClient, name: str) -> Job | None:
    if not is_name(name):
        return None
    live = list(client.jobs(name=name, active=True, limit=20))
    if len(live) > 1:
        raise AmbiguousJob(_several(f"{name!r} is the name of", live), [job["id"] for job in live])
    return live[0] if live else next(client.jobs(name=name, limit=1), None)


def _by_prefix(client: YardClient, reference: str) -> Job | None:
    prefix = reference if reference.startswith("job-") else f"job-{reference}"
    if len(prefix) < len("job-") + SHORTEST_PREFIX or not prefix.isascii():
        return None
    found = [job for job in client.jobs(limit=PREFIX_SEARCH_JOBS) if job["id"].startswith(prefix)]
    if len(found) > 1:
        raise AmbiguousJob(_several(f"ids beginning with {prefix!r} belong to", found), [job["id"] for job in found])
    return found[0] if found else None


def _several(what: str, jobs: Sequence[Job]) -> str:
    shown = ", ".join(f"{job['id']} ({job['state']})" for job in jobs[:10])
    return f"{what} {len(jobs)} jobs: {shown}{', …' if len(jobs) > 10 else ''}; say which by its id"
