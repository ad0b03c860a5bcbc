"""The output of tasks, through the gateway from an agent on a unix socket: byte for byte."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from support.gateway import Gateway, Output, allocation_id, fields_of

BINARY = bytes(range(256)) * 300 + b"\r\n\xff\x00 end without newline"


async def started(gateway: Gateway, data: bytes = b"", attempt: int = 1) -> tuple[str, Output]:
    job = await gateway.submit()
    await gateway.tell(job, "queued", "starting", "running", agent_url=gateway.agent_server.address, attempt=attempt)
    output = gateway.agent.outputs[allocation_id(job, attempt)] = Output(data)
    return job, output


async def test_output_is_passed_on_byte_for_byte(gateway: Gateway) -> None:
    job, _ = await started(gateway, BINARY)
    answer = await gateway.http.get(f"/v1/jobs/{job}/logs")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert (answer.content, answer.headers["x-yard-offset"]) == (BINARY, "0")
    rest = await gateway.http.get(f"/v1/jobs/{job}/logs?offset=70000")
    assert (rest.content, rest.headers["x-yard-offset"]) == (BINARY[70000:], "70000")


async def test_following_ends_when_the_task_has_ended_and_all_is_read(gateway: Gateway) -> None:
    job, output = await started(gateway, b"one\n")
    async with following(gateway.http, job) as chunks:
        assert await anext(chunks) == b"one\n"
        output.write(BINARY)
        received = b""
        while len(received) < len(BINARY):
            received += await anext(chunks)
        assert received == BINARY
        output.end()
        assert [chunk async for chunk in chunks] == []


async def test_following_waits_for_the_start(gateway: Gateway) -> None:
    job = await gateway.submit()
    output = gateway.agent.outputs[allocation_id(job)] = Output(os.urandom(1000))
    output.end()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        reading = group.create_task(gateway.http.get(f"/v1/jobs/{job}/logs?follow=true"))
        await gateway.tell(job, "queued")
        assert not reading.done()
        await gateway.tell(job, "starting", agent_url=gateway.agent_server.address)
    assert reading.result().content == output.data


async def test_following_a_job_that_ends_before_it_starts(gateway: Gateway) -> None:
    job = await gateway.submit()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        reading = group.create_task(gateway.http.get(f"/v1/jobs/{job}/logs?follow=true"))
        await gateway.tell(job, "queued", "cancelled")
    assert reading.result().status_code == 404


async def test_no_output_yet(gateway: Gateway) -> None:
    job = await gateway.submit()
    waiting = await gateway.http.get(f"/v1/jobs/{job}/logs")
    assert (waiting.status_code, waiting.json()["state"]) == (409, "submitted")

    await gateway.tell(job, "queued", "starting", agent_url=gateway.agent_server.address)
    starting = await gateway.http.get(f"/v1/jobs/{job}/logs")  # the agent does not know it yet
    assert (starting.status_code, starting.json()["state"]) == (409, "starting")


async def test_each_attempt_has_its_output(gateway: Gateway) -> None:
    job, _ = await started(gateway, b"first")
    await gateway.tell(job, "queued", attempt=2, reason="retry")
    assert (await gateway.http.get(f"/v1/jobs/{job}/logs")).content == b"first"

    gateway.agent.outputs[allocation_id(job, 2)] = Output(b"second")
    await gateway.tell(job, "starting", "running", attempt=2, agent_url=gateway.agent_server.address)
    assert (await gateway.http.get(f"/v1/jobs/{job}/logs")).content == b"second"
    assert (await gateway.http.get(f"/v1/jobs/{job}/logs?attempt=1")).content == b"first"
    assert (await gateway.http.get(f"/v1/jobs/{job}/logs?attempt=3")).status_code == 409


async def test_a_task_that_the_job_does_not_have(gateway: Gateway) -> None:
    job, _ = await started(gateway)
    answer = await gateway.http.get(f"/v1/jobs/{job}/logs?task=1")

    assert (answer.status_code, fields_of(answer)) == (422, ["task"])


async def test_an_agent_that_is_away_is_said_to_be(gateway: Gateway) -> None:
    job, _ = await started(gateway, b"x")
    await gateway.agent_server.stop()
    answer = await gateway.http.get(f"/v1/jobs/{job}/logs")

    assert (answer.status_code, answer.json()["node"], bool(answer.headers["retry-after"])) == (503, "node-1", True)
    await gateway.agent_server.start()
    assert (await gateway.http.get(f"/v1/jobs/{job}/logs")).content == b"x"


async def test_an_agent_that_dies_in_the_middle_does_not_look_like_the_end(gateway: Gateway) -> None:
    job, output = await started(gateway, b"half")
    async with following(gateway.http, job) as chunks:
        assert await anext(chunks) == b"half"
        output.break_off()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(chunks)


async def test_a_follower_that_leaves_gives_its_place_back(gateway: Gateway) -> None:
    job, _ = await started(gateway, b"x")
    feed = gateway.service.parts.feed
    async with following(gateway.http, job) as chunks:
        await anext(chunks)
        assert (feed.open, gateway.agent.following) == (1, 1)
    async with asyncio.timeout(20):
        while feed.open or gateway.agent.following:
            await asyncio.sleep(0.01)


async def test_places_say_nothing_of_agents(gateway: Gateway) -> None:
    job, _ = await started(gateway)
    shown = (await gateway.http.get(f"/v1/jobs/{job}")).text + (await gateway.http.get(f"/v1/jobs/{job}/events")).text

    assert "agent.sock" not in shown
    assert "node-1" in shown


@asynccontextmanager
async def following(client: httpx.AsyncClient, job: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with asyncio.timeout(20), client.stream("GET", f"/v1/jobs/{job}/logs?follow=true") as response:
        assert response.status_code == 200
        yield response.aiter_raw()
