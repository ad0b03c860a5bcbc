"""The spans of tasks, and the trace context that a task's events and its process continue.

A task's process gets the context of the span that started it. Nothing is held open while it runs: its run is recorded
when it ends, by whichever agent is there then.
"""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

from yard_agent.journal_rows import JournaledAllocation
from yard_domain.states import Outcome
from yard_events.base import EventModel
from yard_obs.catalogue import (
    ALLOCATION_ID,
    ATTEMPT,
    CONVERSATION_ID,
    DESTINATION,
    JOB_ID,
    MESSAGE_ID,
    NODE,
    OUTCOME,
    REASON,
)
from yard_obs.tracing import current_trace, past_span, sent, span

START_TASK = "start task"
RUN_TASK = "run task"

_FAILED = frozenset({Outcome.FAILED, Outcome.LOST})


class TaskTraces:
    """One node's."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._started: dict[str, dict[str, str]] = {}

    @contextmanager
    def starting(self, allocation: JournaledAllocation) -> Generator[dict[str, str]]:
        """A span of trying to start it; yields what its process gets.

        Of several tries that is always the first one's context: which of them led to the process is not known.
        """
        with span(START_TASK, parent=allocation.trace, attributes=self._about(allocation)):
            yield self._started.setdefault(allocation.allocation_id, current_trace())

    def of(self, allocation: JournaledAllocation) -> dict[str, str] | None:
        """The context that its events continue; None without a trace."""
        return self._started.get(allocation.allocation_id) or allocation.trace

    def forget(self, allocation_id: str) -> None:
        self._started.pop(allocation_id, None)

    def ran(self, allocation: JournaledAllocation, until: datetime, outcome: Outcome, reason: str) -> None:
        """It ran from when it was seen running, and ended."""
        parent = self.of(allocation)
        if parent is not None and allocation.started_at is not None:
            past_span(
                RUN_TASK,
                start=allocation.started_at,
                end=until,
                parent=parent,
                attributes=self._about(allocation) | {OUTCOME: outcome.value, REASON: str(reason)},
                failure=str(reason) if outcome in _FAILED else None,
            )

    def told(self, event: EventModel, event_id: str, allocation: JournaledAllocation) -> dict[str, str] | None:
        """The headers with which an event about it travels."""
        parent = self.of(allocation)
        if parent is None:
            return None
        attributes = {DESTINATION: event.TOPIC, MESSAGE_ID: event_id}
        if allocation.correlation_id is not None:
            attributes[CONVERSATION_ID] = allocation.correlation_id
        return sent(event.TOPIC, self._about(allocation) | attributes, parent)

    def _about(self, allocation: JournaledAllocation) -> dict[str, str | int]:
        about: dict[str, str | int] = {NODE: self._node, ALLOCATION_ID: allocation.allocation_id}
        if allocation.work is not None:
            about |= {JOB_ID: allocation.work.job_id, ATTEMPT: allocation.work.attempt}
        return about
