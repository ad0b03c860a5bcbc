"""The lifecycle as a pure function: old decisions are nothing, and no sequence of decisions breaks a rule."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_admission.job import Job
from yard_admission.lifecycle import Decision, apply, cancel, expire
from yard_admission.outbox import Outbox
from yard_admission.settings import AdmissionSettings
from yard_domain.states import JobState, may_become
from yard_events.types import (
    AttemptBlocked,
    AttemptExited,
    AttemptGranted,
    AttemptLost,
    AttemptRecovered,
    AttemptStarted,
    JobFact,
)

NOW = datetime(2025, 1, 1, tzinfo=UTC)
SETTINGS = AdmissionSettings()


def admitted(**facts: Any) -> Job:
    base: dict[str, Any] = {
        "job_id": "job-a",
        "project_id": "default",
        "queue": "default",
        "name": "a",
        "priority": 0,
        "submitted_at": NOW,
        "total_gpus": 2,
        "max_attempts": 2,
        "max_run_seconds": 60.0,
        "state": JobState.ADMITTED,
        "queued_at": NOW,
        "placed": True,
        "place_no": 1,
        "attempt_id": "job-a-a1",
        "claimed_gpus": 2,
    }
    return Job(**(base | facts))


def decision(kind: type[Any], second: int, attempt_id: str = "job-a-a1", **data: Any) -> Decision:
    base = {
        "cluster": "local",
        "pool": "default",
        "attempt_id": attempt_id,
        "job_id": "job-a",
        "project_id": "default",
        "attempt": 1,
        "ledger_time": NOW + timedelta(seconds=second),
    }
    return kind(**(base | data))


def grant(second: int) -> Decision:
    record = {"now": NOW, "seed": 0, "config_hash": "c", "engine_version": "1"}
    one = {"allocation_id": "t0", "task_rank": 0, "node": "n1", "devices": [{"uuid": "G", "model": "m"}]}
    return decision(AttemptGranted, second, queue="default", allocations=[one], decision=record)


def exited(second: int, outcome: str = "failed") -> Decision:
    return decision(AttemptExited, second, outcome=outcome, reason="exit_code", exit_code=1)


def of(kind: str, second: int) -> Decision:
    if kind == "granted":
        return grant(second)
    if kind in ("blocked", "hopeless"):
        return decision(AttemptBlocked, second, reason="too_large", hopeless=kind == "hopeless")
    if kind == "started":
        return decision(AttemptStarted, second)
    if kind == "lost":
        return decision(AttemptLost, second, last_contact=NOW, allocation_ids=["t0"])
    if kind == "recovered":
        return decision(AttemptRecovered, second, allocation_ids=["t0"])
    return exited(second, kind)


KINDS = ["granted", "blocked", "hopeless", "started", "lost", "recovered", "succeeded", "failed", "stopped"]


@pytest.mark.parametrize("kind", KINDS)
def test_about_another_attempt_is_nothing(kind: str) -> None:
    job, out = admitted(attempt_id="job-a-a2"), Outbox(SETTINGS, NOW)
    assert apply(job, of(kind, 1), out) is False
    assert (job, out.events, out.timers) == (admitted(attempt_id="job-a-a2"), [], {})


@pytest.mark.parametrize("kind", KINDS)
def test_not_later_than_the_last_is_nothing(kind: str) -> None:
    job, out = admitted(decided_at=NOW + timedelta(seconds=1)), Outbox(SETTINGS, NOW)
    assert apply(job, of(kind, 1), out) is False
    assert out.events == []


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_attempt_ended_is_nothing(kind: str) -> None:
    job, out = admitted(placed=False, claimed_gpus=0, state=JobState.QUEUED), Outbox(SETTINGS, NOW)
    assert apply(job, of(kind, 1), out) is False
    assert out.events == []


@given(steps=st.lists(st.tuples(st.sampled_from([*KINDS, "cancel", "expire"]), st.integers(0, 3)), max_size=14))
def test_any_sequence_keeps_the_rules_and_doubles_change_nothing(steps: list[tuple[str, int]]) -> None:
    """Even what placement would never say in this order: states stay legal, and a claim is all or nothing."""
    once, doubled = admitted(), admitted()
    out_once, out_doubled = Outbox(SETTINGS, NOW), Outbox(SETTINGS, NOW)
    history: list[Decision] = []
    for second, (kind, back) in enumerate(steps, start=1):
        if kind in ("cancel", "expire"):
            act = cancel if kind == "cancel" else expire
            act(once, out_once)
            act(doubled, out_doubled)
            act(doubled, out_doubled)
        else:
            history.append(of(kind, second))
            apply(once, history[-1], out_once)
            apply(doubled, history[-1], out_doubled)
        for old in history[-1 - back :]:
            assert apply(doubled, old, out_doubled) is False
        assert once.claimed_gpus in (0, once.total_gpus)
        assert once.placed or once.claimed_gpus == 0
        assert once.state.terminal == (once.ended_at is not None)
        assert not (once.state.terminal and once.placed)
    assert once == doubled
    assert out_once.events == out_doubled.events
    assert out_once.timers == out_doubled.timers
    states = [JobState.ADMITTED, *(JobState(s.event.state) for s in out_once.events if isinstance(s.event, JobFact))]
    assert all(may_become(old, new) for old, new in pairwise(states)), states


def test_attempt_ids_are_sent_once() -> None:
    job = admitted(place_no=0)
    first, second = job.next_attempt_id(), job.next_attempt_id()
    job.attempt, job.place_no = 2, 0
    assert [first, second, job.next_attempt_id()] == ["job-a-a1", "job-a-a1.2", "job-a-a2"]
