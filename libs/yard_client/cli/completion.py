"""What the shell offers on TAB. It must be quick and silent: a slow or absent server offers nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from yard_client.errors import ClientError

if TYPE_CHECKING:
    from yard_client.client import YardClient


def job_references(incomplete: str) -> list[tuple[str, str]]:
    """Names and ids of the newest jobs, with their state."""

    def candidates(client: YardClient) -> Iterable[tuple[str, str]]:
        for job in client.jobs(limit=100):
            yield job["name"], job["state"]
            yield job["id"], f"{job['name']} {job['state']}"

    return _offers(incomplete, candidates)


def node_names(incomplete: str) -> list[tuple[str, str]]:
    return _offers(incomplete, lambda client: ((node["name"], node["state"]) for node in client.nodes()))


def queue_names(incomplete: str) -> list[tuple[str, str]]:
    return _offers(incomplete, lambda client: ((queue["name"], "queue") for queue in client.queues()))


def _offers(incomplete: str, candidates: Callable[[YardClient], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    from yard_client import config
    from yard_client.client import YardClient
    from yard_client.retry import RetryPolicy

    try:
        loaded = config.load(os.environ)
        once = RetryPolicy(budget_seconds=0)
        with YardClient.from_config(loaded, retry=once, longest_silence_seconds=1.0) as client:
            found = {name: text for name, text in candidates(client) if name.startswith(incomplete)}
    except ClientError:
        return []
    return list(found.items())
