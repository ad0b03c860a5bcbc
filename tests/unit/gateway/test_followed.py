"""An answer that goes on: what it was opened with is closed, also when it never begins."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from yard_gateway.api.streams import Followed
from yard_gateway.feed import Feed

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.4"}, "headers": []}


async def answer(feed: Feed, chunks: list[bytes], error: Exception | None = None) -> tuple[list[dict[str, Any]], int]:
    """The messages sent, and how often it was closed."""
    sent: list[dict[str, Any]] = []
    closed = 0

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        if error is not None:
            raise error

    async def close() -> None:
        nonlocal closed
        closed += 1

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await Followed(feed, "job-1", lambda _watch: body(), close=close)(SCOPE, receive, send)
    return sent, closed


async def test_it_ends_in_good_order() -> None:
    feed = Feed(limit=1)
    sent, closed = await answer(feed, [b"a", b"b"])

    assert (sent[0]["status"], closed, feed.open) == (200, 1, 0)
    assert b"".join(message.get("body", b"") for message in sent) == b"ab"
    assert sent[-1]["more_body"] is False


async def test_without_a_place_it_is_a_503_and_its_source_is_closed() -> None:
    sent, closed = await answer(Feed(limit=0), [b"a"])

    assert (sent[0]["status"], closed) == (503, 1)


async def test_a_source_that_breaks_off_leaves_the_answer_open_ended() -> None:
    sent, closed = await answer(Feed(limit=1), [b"a"], httpx.ReadError("gone"))

    assert (sent[0]["status"], closed) == (200, 1)
    assert sent[-1]["more_body"] is True


async def test_an_error_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await answer(Feed(limit=1), [], ZeroDivisionError())
