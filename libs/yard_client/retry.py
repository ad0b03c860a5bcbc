"""When a call is tried again, and after how long. Pure: the clients bring the clock and the sleeping."""

from dataclasses import dataclass

import httpx

# Nothing was sent yet, so trying again cannot do anything twice.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_NEVER = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.ProxyError)
_PASSING_STATUS = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Total seconds to keep trying one call, and the bounds of the growing pause between tries."""

    budget_seconds: float = 10.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 2.0


class Backoff:
    """The pauses of one call; `succeeded` starts the budget afresh, for streams that live long."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self._give_up_at = now + policy.budget_seconds
        self._pause = policy.first_pause_seconds

    def succeeded(self, now: float) -> None:
        self._give_up_at = now + self._policy.budget_seconds
        self._pause = self._policy.first_pause_seconds

    def pause(self, now: float, retry_after_seconds: float | None = None) -> float | None:
        """Seconds to wait before the next try; None when the budget would be exceeded."""
        pause = max(self._pause, retry_after_seconds or 0.0)
        self._pause = min(self._pause * 2, self._policy.longest_pause_seconds)
        return pause if now + pause <= self._give_up_at else None


def may_try_again(error: httpx.TransportError, *, idempotent: bool) -> bool:
    if isinstance(error, _NEVER):
        return False
    return idempotent or isinstance(error, _NOT_SENT)


def is_passing(response: httpx.Response) -> bool:
    """Whether the same call may succeed soon. Needs the headers only.

    A server that is being stopped answers its open calls with a bare 500; gpuyard's own 500 is a problem document.
    """
    if response.status_code == 500:
        return "json" not in response.headers.get("content-type", "")
    return response.status_code in _PASSING_STATUS


def retry_after_seconds(response: httpx.Response) -> float | None:
    """The header in its form of seconds; a date, which gpuyard never sends, counts as absent."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else None


def cause_of(error: httpx.TransportError) -> str:
    """A transport error in a few words for people."""
    if isinstance(error, httpx.ConnectError) and "refused" in str(error).lower():
        return "connection refused"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
