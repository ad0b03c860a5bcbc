"""Following events: in order, filtered, and resumed without a gap however the connection ends."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
from sqlalchemy import text

from support.gateway import ADMIN_TOKEN, START, Gateway, event_stream, fact, fields_of, running_gateway, sequence
from yard_events.types import DeviceFacts, InventoryNode
from yard_gateway.cycle import SCOPE, Retention
from yard_gateway.database import take_numbers
from yard_gateway.settings import GatewaySettings
from yard_gateway.tables import EVENT_COUNTER
from yard_runtime.service import Runtime

AS_ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}


def node(name: str, state: str = "ready") -> InventoryNode:
    return InventoryNode(
        node=name,
        cluster="local",
        pool="default",
        state=state,
        cordoned=False,
        generation=1,
        boot_id="boot-1",
        agent_url="unix:/secret/agent.sock",
        cpus=8,
        memory_bytes=2**30,
        devices=[DeviceFacts(uuid="GPU-0", index=0, model="H100", memory_bytes=2**36)],
        last_contact=START,
        at=START,
    )


async def test_events_arrive_in_order_with_what_they_say(gateway: Gateway) -> None:
    job = await gateway.submit()
    async with event_stream(gateway.http) as events:
        await gateway.publish(fact("queued", job), fact("starting", job, agent_url="unix:/secret/agent.sock"))
        await gateway.publish(node("node-1"))
        found = await events.take(3)

    by_type = {event["type"]: event for event in found}
    assert sequence(found) == [1, 2, 3]
    queued = by_type["yard.jobs.queued.v1"]
    assert (queued["job_id"], queued["project"], queued["node"]) == (job, "default", None)
    assert queued["data"]["state"] == "queued"
    assert by_type["yard.inventory.node.v1"]["node"] == "node-1"
    assert by_type["yard.inventory.node.v1"]["data"]["devices"][0]["uuid"] == "GPU-0"
    assert "secret" not in str(found)


async def test_without_a_position_it_starts_now(gateway: Gateway) -> None:
    job = await gateway.submit()
    await gateway.tell(job, "queued", "starting")
    async with event_stream(gateway.http) as events:
        await gateway.publish(fact("running", job))
        assert [event["data"]["state"] for event in await events.take(1)] == ["running"]


async def test_filters(gateway: Gateway) -> None:
    ours, theirs = await gateway.submit(), await gateway.submit(project="vision")
    await gateway.tell(ours, "queued", "starting", "running", "succeeded")
    await gateway.tell(theirs, "queued", "cancelled", project_id="vision")
    await gateway.publish(node("node-1"))
    cases = {
        f"?after=0&job={ours}": ["queued", "starting", "running", "succeeded"],
        "?after=0&project=vision": ["queued", "cancelled"],
        "?after=0&type=yard.jobs.running.v1,yard.jobs.cancelled.v1": ["running", "cancelled"],
        "?after=0&type=yard.inventory.node.v1": ["ready"],
        f"?after=2&job={ours}&type=yard.jobs.succeeded.v1": ["succeeded"],
    }
    for query, states in cases.items():
        async with event_stream(gateway.http, query) as events:
            assert [event["data"]["state"] for event in await events.take(len(states))] == states, query


async def test_a_silent_stream_is_kept_alive(runtime: Runtime) -> None:
    async with running_gateway(runtime, keep_alive_seconds=0.05) as gateway, event_stream(gateway.http) as events:
        await events.comment("keep-alive")
        await events.comment("keep-alive")


async def test_resuming_while_events_are_written_skips_and_doubles_nothing(runtime: Runtime) -> None:
    """Readers break off every few events and resume by id, while facts of many jobs come in batches of all sizes."""
    async with running_gateway(runtime, stream_page=7) as gateway:
        jobs = [await gateway.submit() for _ in range(40)]
        total = len(jobs) * 3

        async def write() -> None:
            for start, size in zip(range(0, 40, 8), (1, 2, 3, 5, 8), strict=True):
                for first in range(start, start + 8, size):
                    group = jobs[first : min(first + size, start + 8)]
                    for kind in ("queued", "starting", "cancelled"):
                        await gateway.publish(*(fact(kind, job) for job in group))

        async def follow(pieces: int) -> list[dict[str, Any]]:
            seen: list[dict[str, Any]] = []
            while len(seen) < total:
                last = seen[-1]["seq"] if seen else 0
                async with event_stream(gateway.http, last_id=last) as events:
                    seen += await events.take(min(pieces, total - len(seen)))
            return seen

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            followers = [group.create_task(follow(pieces)) for pieces in (3, 10, 200)]
            group.create_task(write())

        for follower in followers:
            seen = follower.result()
            assert sequence(seen) == list(range(1, total + 1))
            assert {event["job_id"] for event in seen} == set(jobs)


async def test_law_5_a_number_is_never_seen_before_a_smaller_one(gateway: Gateway, second_runtime: Runtime) -> None:
    """A transaction that has taken a number and not yet committed holds up the next one: nobody overtakes."""
    job = await gateway.submit()
    async with event_stream(gateway.http) as events:
        async with second_runtime.engine.begin() as slow:
            number = await take_numbers(slow, EVENT_COUNTER, 1)
            await gateway.publish(fact("queued", job))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%counters%'"
            async with asyncio.timeout(20):
                while True:
                    async with gateway.runtime.engine.connect() as connection:
                        if await connection.scalar(text(waits)):
                            break
            assert (await gateway.http.get(f"/v1/jobs/{job}/events")).json() == {"items": []}
        [event] = await events.take(1)
    assert event["seq"] == number + 1


async def test_a_slow_follower_holds_up_nobody(gateway: Gateway) -> None:
    job = await gateway.submit()
    async with event_stream(gateway.http, "?after=0"):  # opened, never read
        text_of_some_size = "x" * 20_000
        for number in range(60):
            await gateway.publish(fact("queued", job, detail=f"{number} {text_of_some_size}"))
        async with event_stream(gateway.http, "?after=0") as events:
            found = await events.take(60)
    assert [event["data"]["detail"].split()[0] for event in found] == [str(number) for number in range(60)]


async def test_positions_that_cannot_be_resumed_are_gone(gateway: Gateway) -> None:
    job = await gateway.submit()
    await gateway.tell(job, "queued", "starting", "running")
    async with gateway.runtime.engine.begin() as connection:
        await connection.execute(text("DELETE FROM gateway.events WHERE seq <= 2"))

    for path, headers in (
        ("/v1/events?after=1", {}),
        ("/v1/events", {"last-event-id": "0"}),
        ("/v1/events?after=4", {}),
    ):
        answer = await gateway.http.get(path, headers=headers)
        assert (answer.status_code, answer.json()["first"], answer.json()["last"]) == (410, 3, 3), path
    async with event_stream(gateway.http, last_id=2) as events:
        assert sequence(await events.take(1)) == [3]
    for position in ("x", "0" * 5000 + "1"):
        refused = await gateway.http.get("/v1/events", headers={"last-event-id": position})
        assert refused.status_code == 422
    assert (refused.status_code, fields_of(refused)) == (422, ["Last-Event-ID"])


async def test_retention_forgets_old_events_from_the_front(gateway: Gateway, runtime: Runtime) -> None:
    old, new = await gateway.submit(), await gateway.submit()
    await gateway.tell(old, "queued", "cancelled")
    await gateway.tell(new, "queued")
    async with runtime.engine.begin() as connection:
        await connection.execute(text("UPDATE gateway.events SET recorded_at = :at WHERE seq IN (1, 3)"), {"at": START})
        await connection.execute(
            text("UPDATE gateway.jobs SET ended_at = :at WHERE ended_at IS NOT NULL"), {"at": START}
        )

    store = gateway.service.parts.store
    async with store.unit_of_work() as uow:
        uow.now = START + timedelta(days=31)
        assert await Retention(GatewaySettings())(uow, SCOPE) is False
    assert [row.seq for row in await gateway.service.parts.reads.rows(text("SELECT seq FROM gateway.events"))] == [2, 3]
    assert (await gateway.http.get(f"/v1/jobs/{old}")).status_code == 404
    assert (await gateway.http.get(f"/v1/jobs/{new}")).status_code == 200


async def test_the_events_of_a_job_come_in_pages(gateway: Gateway) -> None:
    job, other = await gateway.submit(), await gateway.submit()
    await gateway.tell(job, "queued", "starting")
    await gateway.tell(other, "queued")
    await gateway.tell(job, "running")

    first = (await gateway.http.get(f"/v1/jobs/{job}/events?limit=2")).json()["items"]
    rest = (await gateway.http.get(f"/v1/jobs/{job}/events?after={first[-1]['seq']}")).json()["items"]
    assert [event["data"]["state"] for event in first + rest] == ["queued", "starting", "running"]


async def test_a_stopping_gateway_ends_its_streams(runtime: Runtime) -> None:
    opened = asyncio.Barrier(4)

    async def follow(url: str) -> None:
        async with (
            httpx.AsyncClient(base_url=url, headers=AS_ADMIN, timeout=20) as client,
            event_stream(client) as events,
        ):
            await events.comment("connected")
            await opened.wait()
            async for _ in events.lines:
                pass

    async with asyncio.timeout(20), asyncio.TaskGroup() as group, running_gateway(runtime) as gateway:
        for _ in range(3):
            group.create_task(follow(gateway.url))
        await opened.wait()
