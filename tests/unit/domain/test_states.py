"""The life of a job: the table, and what follows from it."""

import pytest

from yard_domain.states import JOB_TRANSITIONS, TERMINAL_JOB_STATES, JobState, may_become

S = JobState

TABLE = {
    S.SUBMITTED: "queued failed cancelled",
    S.QUEUED: "queued admitted starting cancelling cancelled failed",
    S.ADMITTED: "queued starting cancelling cancelled failed",
    S.STARTING: "running queued succeeded failed cancelling lost expired",
    S.RUNNING: "succeeded failed queued cancelling lost expired",
    S.CANCELLING: "cancelled lost",
    S.LOST: "running starting queued succeeded failed cancelling cancelled expired",
    S.SUCCEEDED: "",
    S.FAILED: "",
    S.CANCELLED: "",
    S.EXPIRED: "",
}


@pytest.mark.parametrize("old", list(JobState))
def test_a_state_becomes_what_the_table_says_and_nothing_else(old: JobState) -> None:
    assert {new.value for new in JobState if may_become(old, new)} == set(TABLE[old].split())


def test_every_state_has_a_row() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)


def test_terminal_states_are_those_that_nothing_follows() -> None:
    assert {state for state in JobState if not JOB_TRANSITIONS[state]} == TERMINAL_JOB_STATES
    assert all(state.terminal == (state in TERMINAL_JOB_STATES) for state in JobState)


@pytest.mark.parametrize("state", [state for state in JobState if not state.terminal])
def test_every_live_state_can_end(state: JobState) -> None:
    reachable, frontier = {state}, {state}
    while frontier:
        frontier = {new for old in frontier for new in JOB_TRANSITIONS[old]} - reachable
        reachable |= frontier
    assert reachable & TERMINAL_JOB_STATES


@pytest.mark.parametrize("state", [state for state in JobState if state is not S.SUBMITTED])
def test_every_state_is_reachable_from_submission(state: JobState) -> None:
    reachable, frontier = {S.SUBMITTED}, {S.SUBMITTED}
    while frontier:
        frontier = {new for old in frontier for new in JOB_TRANSITIONS[old]} - reachable
        reachable |= frontier
    assert state in reachable


@pytest.mark.parametrize("state", [state for state in JobState if not state.terminal])
def test_every_live_job_can_be_cancelled(state: JobState) -> None:
    assert state is S.CANCELLING or may_become(state, S.CANCELLED) or may_become(state, S.CANCELLING)
