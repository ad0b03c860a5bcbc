"""Forgetting what ended long ago, and what placement tells over HTTP."""

from datetime import timedelta

import httpx
import pytest
import sqlalchemy as sa

from support.placement import GIB, PoolDesk
from yard_events.registry import PLACEMENT_REQUESTS, TOPICS
from yard_placement import cycle
from yard_placement.cycle import PRUNE
from yard_placement.settings import PlacementSettings

DAY = 86_400


async def plan_pruning(desk: PoolDesk) -> None:
    assert desk.service.on_activate is not None
    await desk.service.on_activate()


async def attempts(desk: PoolDesk) -> set[str]:
    return {row["job_id"].removeprefix("job-") for row in await desk.rows("SELECT job_id FROM placement.attempts")}


async def test_ended_attempts_are_forgotten_after_their_time(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=3)
    await plan_pruning(desk)
    await desk.place("done")
    await desk.over("done")
    await desk.place("stopped", gpus=4)
    await desk.stop("stopped")
    await desk.place("emptying")
    await desk.exited("emptying")
    await desk.place("running")
    await desk.wait(7 * DAY)
    assert await attempts(desk) == {"done", "stopped", "emptying", "running"}
    await desk.wait(2 * DAY)
    assert await attempts(desk) == {"emptying", "running"}
    assert len(await desk.rows("SELECT * FROM placement.allocations")) == 2
    await desk.emptied("emptying")
    await desk.wait(2 * 3600)
    assert await attempts(desk) == {"running"}


async def test_more_than_one_round_of_pruning_is_done_at_once(desk: PoolDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "_PRUNE_LIMIT", 2)
    await plan_pruning(desk)
    for number in range(5):
        await desk.place(f"x{number}", settle=False)
        await desk.stop(f"x{number}")
    await desk.wait(9 * DAY)
    assert await attempts(desk) == set()
    [timer] = await desk.rows(f"SELECT due_at FROM placement.timers WHERE kind = '{PRUNE}'")
    assert timer["due_at"] == desk.clock.now() + timedelta(hours=1)


def test_attempts_are_kept_longer_than_their_requests() -> None:
    """A request that is read again must find its attempt, or it would run twice."""
    assert PlacementSettings().keep_ended_seconds > TOPICS[PLACEMENT_REQUESTS].retention_seconds


async def test_nodes_over_http(desk: PoolDesk) -> None:
    await desk.node("n1", gpus=3)
    await desk.node("n2", gpus=1)
    await desk.place("x", cpus=2.0, memory=GIB)
    await desk.place("y")
    await desk.exited("y")
    app = desk.service.api()
    assert app is not None
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://placement") as client:
        answer = await client.get("/nodes")
    assert answer.status_code == 200
    items = {item["node"]: item for item in answer.json()["items"]}
    holders = {d["uuid"]: (d["job_id"], d["dirty"]) for item in items.values() for d in item["devices"]}
    where = {holder: uuid for uuid, holder in (await desk.holders()).items()}
    assert holders[where["x.t0"]] == ("job-x", False)
    assert holders[where["y.t0"]] == ("job-y", True)
    assert sum(job is None for job, _ in holders.values()) == 2
    used = items[where["x.t0"].partition("/")[0]]
    assert (used["cpus_used"], used["memory_used_bytes"]) == (2.0, GIB)


_UNDO_LATER_MIGRATIONS = (
    "ALTER TABLE placement.attempts DROP COLUMN trace, DROP COLUMN correlation_id, DROP COLUMN stop_trace",
    "DROP TABLE placement.outbox, placement.published",
    "ALTER TABLE placement.parked DROP COLUMN retry_requested_at",
)


async def test_the_second_migration_fills_what_the_first_did_not_have(desk: PoolDesk) -> None:
    await desk.node("n1")
    await desk.place("x")
    async with desk.runtime.engine.begin() as connection:
        for statement in _UNDO_LATER_MIGRATIONS:
            await connection.execute(sa.text(statement))
        for column in ("boot_id", "agent_offset", "inventory_offset"):
            await connection.execute(sa.text(f"ALTER TABLE placement.nodes DROP COLUMN {column}"))
        await connection.execute(sa.text("ALTER TABLE placement.attempts DROP COLUMN pending_since"))
        await connection.execute(sa.text("ALTER TABLE placement.allocations DROP COLUMN billed_since"))
        await connection.execute(sa.text("UPDATE placement.alembic_version SET version_num = '0001'"))
    desk = await desk.reopened()
    await desk.settle()
    await desk.over("x")
    assert await desk.decided("x") == ["granted n1", "started", "exited succeeded exit_code", "released t0"]
    await desk.check_bills()
