"""Tokens, principals and cursors, apart from HTTP and database."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_gateway.database import Reads
from yard_gateway.principals import Principal, Role
from yard_gateway.read_model import decode_cursor, encode_cursor
from yard_gateway.tokens import Authenticator, bearer_token, digest_of, mint
from yard_runtime.http import Problem


def principal(role: str, *projects: str) -> Principal:
    return Principal("token-1", "ci", Role(role), frozenset(projects) if projects else None)


def test_tokens_are_long_and_different() -> None:
    tokens = {mint() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("yard_") and len(token) >= 48 for token in tokens)
    assert len({digest_of(token) for token in tokens}) == 100


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc "])
def test_a_bearer_header_is_read(header: str) -> None:
    assert bearer_token(header) == "abc"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc", "Bearer " + "x" * 513])
def test_anything_else_is_unauthorized(header: str | None) -> None:
    with pytest.raises(Problem) as caught:
        bearer_token(header)
    assert (caught.value.status, "Bearer" in caught.value.headers["WWW-Authenticate"]) == (401, True)


class SlowReads(Reads):
    """Has read the token's row, and gives it when the test says so."""

    def __init__(self, row: Any) -> None:
        self.found = [row]
        self.asked = 0
        self.reading = asyncio.Event()
        self.answer = asyncio.Event()

    async def rows(self, statement: Any, values: Any = None) -> list[Any]:
        self.asked += 1
        found = list(self.found)
        self.reading.set()
        await self.answer.wait()
        return found


async def test_a_token_revoked_while_it_was_looked_up_is_not_remembered() -> None:
    row = SimpleNamespace(token_id="t", name="ci", role="operator", projects=[], digest=digest_of("abc"))
    reads = SlowReads(row)
    authenticator = Authenticator(reads, cache_seconds=60, monotonic=lambda: 0.0)
    async with asyncio.TaskGroup() as group:
        early = group.create_task(authenticator.principal("Bearer abc"))
        await reads.reading.wait()
        reads.found.clear()
        authenticator.forget()
        reads.answer.set()
    assert early.result().name == "ci"
    with pytest.raises(Problem, match="401"):
        await authenticator.principal("Bearer abc")


async def test_a_caller_is_remembered_for_as_long_as_it_may_be() -> None:
    row = SimpleNamespace(token_id="t", name="ci", role="operator", projects=[], digest=digest_of("abc"))
    reads = SlowReads(row)
    reads.answer.set()
    now = 0.0
    authenticator = Authenticator(reads, cache_seconds=5, monotonic=lambda: now)
    for now, asked in ((0.0, 1), (4.9, 1), (5.1, 2), (9.0, 2)):
        await authenticator.principal("Bearer abc")
        assert reads.asked == asked, now


def test_what_a_bound_caller_sees() -> None:
    bound, free = principal("viewer", "a", "b"), principal("operator")
    assert [bound.sees(project) for project in ("a", "c", None)] == [True, False, True]
    assert [free.sees(project) for project in ("a", "c", None)] == [True, True, True]
    assert json.loads(bound.header()) == {"name": "ci", "role": "viewer", "projects": ["a", "b"]}
    assert json.loads(free.header())["projects"] is None


@given(st.integers(min_value=0, max_value=10**18 - 1))
def test_a_cursor_comes_back(before: int) -> None:
    assert decode_cursor(encode_cursor(before)) == before


@given(st.text(max_size=64))
def test_what_is_no_cursor_is_a_value_error_or_one_of_ours(text: str) -> None:
    try:
        before = decode_cursor(text)
    except ValueError:
        return
    assert decode_cursor(encode_cursor(before)) == before
