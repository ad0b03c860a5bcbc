"""What admission relies on in placement: a withdrawal that comes in time is answered, one that comes late is not."""

from datetime import UTC, datetime

import pytest

from yard_events.types import AttemptExited
from yard_placement.ledger import Attempt
from yard_placement.lifecycle import advance
from yard_placement.outbox import LedgerClock, Outbox

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def attempt(**facts: object) -> Attempt:
    base: dict[str, object] = {
        "attempt_id": "job-a-a1",
        "job_id": "job-a",
        "project_id": "default",
        "attempt": 1,
        "queue": "default",
        "name": "a",
        "pool_key": "local/default",
        "priority": 0,
        "submitted_at": NOW,
        "pending_since": NOW,
        "spec": {"tasks": {}, "run": {"command": ["true"]}},
    }
    return Attempt(**(base | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"withdrawn": True, "reason": "too_large"}, "too_large"),
        ({"withdrawn": True, "reason": "too_large", "stop_reason": "cancelled"}, "cancelled"),
        ({"stop_reason": "cancelled"}, "cancelled"),
    ],
)
def test_an_attempt_that_still_waits_ends_and_says_so(facts: dict[str, object], reason: str) -> None:
    outbox = Outbox(LedgerClock(NOW), NOW)
    waiting = attempt(**facts)
    assert advance(waiting, {}, outbox, 10.0) == []
    events = [said.event for said in outbox.events]
    assert [(type(e), e.outcome, e.reason) for e in events if isinstance(e, AttemptExited)] == [
        (AttemptExited, "stopped", reason)
    ]
    assert waiting.state == "ended"


def test_an_attempt_that_was_not_withdrawn_goes_on_waiting() -> None:
    outbox = Outbox(LedgerClock(NOW), NOW)
    waiting = attempt(reason="too_large")
    advance(waiting, {}, outbox, 10.0)
    assert (outbox.events, waiting.state) == ([], "pending")
