"""The output of tasks over HTTP: exact bytes, for whom they are, until the last of them."""

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest

from support.agent_node import AgentNodes, log_path
from yard_runtime.http import node_token

BLOCK = bytes(range(256)) * 256
TWENTY_MB = 320
PRINT_BINARY = f"import sys\nfor _ in range({TWENTY_MB}): sys.stdout.buffer.write(bytes(range(256)) * 256)"


async def test_twenty_megabytes_of_binary_come_exact(nodes: AgentNodes) -> None:
    expected = hashlib.sha256(BLOCK * TWENTY_MB).digest()
    async with nodes.running(), nodes.http() as http:
        await nodes.start("a", sys.executable, "-c", PRINT_BINARY)
        await nodes.started("a")
        followers = [asyncio.create_task(http.get(log_path("a") + "?follow=true")) for _ in range(2)]
        for follower in followers:
            answer = await follower
            assert answer.headers["content-type"] == "application/octet-stream"
            assert hashlib.sha256(answer.content).digest() == expected
        await nodes.ended("a")
        plain = await http.get(log_path("a"))
        assert hashlib.sha256(plain.content).digest() == expected
        size = len(BLOCK) * TWENTY_MB
        for offset in (1, 65_537, size - 3, size):
            for follow in ("true", "false"):
                answer = await http.get(log_path("a"), params={"offset": offset, "follow": follow})
                assert answer.headers["x-yard-offset"] == str(offset)
                assert answer.content == (BLOCK * TWENTY_MB)[offset:]


async def test_following_ends_when_nothing_writes_any_more(nodes: AgentNodes) -> None:
    """The first process is gone long before the last words."""
    script = "(trap 'echo last words; exit' TERM; echo child; while :; do sleep 0.02; done) & sleep 0.3; echo root"
    async with nodes.running(), nodes.http() as http:
        await nodes.start("a", "sh", "-c", script)
        await nodes.started("a")
        answer = await http.get(log_path("a") + "?follow=true")
        assert answer.content.startswith(b"child\nroot\n")
        assert answer.content.endswith(b"last words\n")
        await nodes.ended("a")


async def test_a_prepared_task_that_is_stopped_ends_its_followers(nodes: AgentNodes) -> None:
    async with nodes.running(), nodes.http() as http:
        await nodes.prepare("a", "true")
        await nodes.until(lambda: nodes.kinds("a") == ["TaskReady"])
        async with http.stream("GET", log_path("a") + "?follow=true") as answer:
            assert answer.status_code == 200
            await nodes.stop("a")
            assert await answer.aread() == b""


async def test_a_plain_answer_ends_though_the_task_prints_on(nodes: AgentNodes) -> None:
    async with nodes.running(), nodes.http() as http:
        await nodes.start("a", "yes")
        await nodes.started("a")
        answer = await http.get(log_path("a"))
        assert answer.status_code == 200
        await nodes.stop("a", grace=0)
        await nodes.ended("a")


async def test_an_offset_beyond_the_end(nodes: AgentNodes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with nodes.running(), nodes.http() as http:
        await nodes.start("a", "sh", "-c", f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two")
        await nodes.started("a")
        answer = await http.get(log_path("a"), params={"offset": 100})
        assert answer.status_code == 416
        assert answer.headers["content-type"] == "application/problem+json"
        waiting = asyncio.create_task(http.get(log_path("a"), params={"offset": 6, "follow": "true"}))
        gate.touch()
        assert (await waiting).content == b"o\n"
        await nodes.ended("a")
        assert (await http.get(log_path("a"), params={"offset": 9, "follow": "true"})).status_code == 416
        for bad in ("-1", "x", ""):
            assert (await http.get(log_path("a"), params={"offset": bad})).status_code == 422


async def test_who_may_read(nodes: AgentNodes) -> None:
    nodes.nodes = [{"name": name, "devices": "1xL4-24GB"} for name in ("n1", "n2")]
    async with nodes.running():
        await nodes.start("a", "echo", "secret")
        await nodes.ended("a")
        internal = nodes.runtime.internal_token
        for token in ("-", "wrong", "ü", internal, node_token(internal, "n2")):
            async with nodes.http(token="x") as http:
                answer = await http.get(log_path("a"), headers={"authorization": f"Bearer {token}".encode()})
                assert answer.status_code == 401
                assert b"secret" not in answer.content
        async with nodes.http() as http:
            assert (await http.get(log_path("a"))).content == b"secret\n"
            assert (await http.get(log_path("nobody"))).status_code == 404
        async with nodes.http("elsewhere") as http:
            assert (await http.get(log_path("a", "elsewhere"))).status_code == 404
        async with nodes.http("n2") as http:
            assert (await http.get(log_path("a", "n2"))).status_code == 404


@pytest.mark.parametrize(
    "name",
    ["..%2fjournal.sqlite", "..%2f..%2fn1%2fjournal.sqlite", "%2e%2e", ".", "%2fetc%2fpasswd", "a%00", "a%2f..%2fa"],
)
async def test_no_name_leads_to_another_file(nodes: AgentNodes, name: str) -> None:
    async with nodes.running(), nodes.http() as http:
        await nodes.start("a", "true")
        await nodes.ended("a")
        assert (await http.get(f"/v1/nodes/n1/allocations/{name}/log")).status_code == 404
