"""When a call is tried again: within its budget, and never if that could do something twice."""

import httpx
import pytest

from yard_client.retry import Backoff, RetryPolicy, is_passing, may_try_again, retry_after_seconds


def test_pauses_grow_to_a_bound_and_end_with_the_budget() -> None:
    backoff = Backoff(RetryPolicy(budget_seconds=10, first_pause_seconds=0.5, longest_pause_seconds=2), now=100)
    pauses, now = [], 100.0
    while (pause := backoff.pause(now)) is not None:
        pauses.append(pause)
        now += pause
    assert pauses == [0.5, 1, 2, 2, 2, 2]


def test_the_server_may_ask_for_a_longer_pause_but_not_beyond_the_budget() -> None:
    backoff = Backoff(RetryPolicy(budget_seconds=10), now=0)
    assert backoff.pause(0, retry_after_seconds=5) == 5
    assert backoff.pause(5, retry_after_seconds=6) is None


def test_success_begins_the_budget_anew() -> None:
    backoff = Backoff(RetryPolicy(budget_seconds=1, first_pause_seconds=0.1), now=0)
    assert backoff.pause(0.95) is None
    backoff.succeeded(50)
    assert backoff.pause(50.5) == 0.1


@pytest.mark.parametrize(
    ("error", "idempotent", "other"),
    [
        (httpx.ConnectError("refused"), True, True),
        (httpx.ConnectTimeout(""), True, True),
        (httpx.ReadError(""), True, False),
        (httpx.ReadTimeout(""), True, False),
        (httpx.WriteError(""), True, False),
        (httpx.RemoteProtocolError("cut"), True, False),
        (httpx.UnsupportedProtocol(""), False, False),
        (httpx.LocalProtocolError(""), False, False),
    ],
)
def test_what_may_have_arrived_is_sent_again_only_if_idempotent(
    error: httpx.TransportError, idempotent: bool, other: bool
) -> None:
    assert may_try_again(error, idempotent=True) == idempotent
    assert may_try_again(error, idempotent=False) == other


@pytest.mark.parametrize(
    ("status", "content_type", "passing"),
    [
        (503, "application/problem+json", True),
        (502, "text/html", True),
        (429, "application/problem+json", True),
        (500, "text/plain; charset=utf-8", True),
        (500, "application/problem+json", False),
        (409, "application/problem+json", False),
        (200, "application/json", False),
    ],
)
def test_which_answers_pass(status: int, content_type: str, passing: bool) -> None:
    assert is_passing(httpx.Response(status, headers={"content-type": content_type})) == passing


@pytest.mark.parametrize(
    ("value", "seconds"), [("2", 2.0), ("0", 0.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)]
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after_seconds(httpx.Response(503, headers={"retry-after": value})) == seconds
