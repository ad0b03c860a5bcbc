"""What agents register, what becomes of it, and what a heartbeat does not do."""

import pytest
import sqlalchemy as sa

from support.inventory import GIB, Inventory, device
from yard_domain.errors import Permanent


async def test_a_new_node_is_told_to_all_in_full(inventory: Inventory):
    await inventory.feed.send(inventory.registered("n1", device("GPU-b", 1), device("GPU-a", 0, healthy=False)))
    (event,) = await inventory.emitted()
    assert event.model_dump(exclude={"devices"}) == {
        "node": "n1",
        "cluster": "local",
        "pool": "default",
        "state": "ready",
        "cordoned": False,
        "generation": 1,
        "boot_id": "b1",
        "agent_url": "http://127.0.0.1:9000",
        "cpus": 8.0,
        "memory_bytes": 64 * GIB,
        "labels": {"zone": "a"},
        "simulated": False,
        "last_contact": inventory.clock.now(),
        "at": inventory.clock.now(),
    }
    assert event.devices == [device("GPU-a", 0, healthy=False), device("GPU-b", 1)]


async def test_a_heartbeat_reaches_nobody_and_wakes_nothing(inventory: Inventory):
    """kueue#6570: heartbeats requeued everything and starved new work."""
    await inventory.register("n1", "n2")
    await inventory.emitted()
    timers = await inventory.rows("timers")
    woken: list[str] = []
    inventory.store.on_dirty(woken.append)
    for _ in range(3):
        inventory.clock.advance(4)
        await inventory.hear("n1", "n2")
    assert await inventory.emitted() == []
    assert woken == []
    assert await inventory.rows("timers") == timers, "a heartbeat sets no timer"
    assert {row["last_contact"] for row in await inventory.rows("nodes")} == {inventory.clock.now()}


async def test_a_batch_of_heartbeats_costs_one_read_and_one_write(inventory: Inventory):
    names = [f"n{number}" for number in range(200)]
    await inventory.register(*names)
    statements: list[str] = []

    def remember(_connection, _cursor, statement, *_rest):
        statements.append(statement)

    engine = inventory.runtime.engine.sync_engine
    sa.event.listen(engine, "before_cursor_execute", remember)
    try:
        await inventory.hear(*names)
    finally:
        sa.event.remove(engine, "before_cursor_execute", remember)
    assert [statement.split()[0] for statement in statements] == ["SELECT", "UPDATE"]


async def test_an_agent_that_registers_again_unchanged_is_no_news(inventory: Inventory):
    await inventory.register("n1")
    await inventory.emitted()
    inventory.clock.advance(5)
    await inventory.register("n1")
    assert await inventory.emitted() == []


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        ({"boot_id": "b2"}, 1),
        ({"agent_url": "http://127.0.0.1:9001"}, 1),
        ({"labels": {"zone": "b"}}, 1),
        ({"pool": "other"}, 1),
        ({"cpus": 4.0}, 2),
        ({"devices": [device("GPU-n1-0")]}, 2),
        ({"devices": [device("GPU-n1-0", healthy=False, detail="XID 79"), device("GPU-n1-1", 1)]}, 1),
    ],
)
async def test_what_changed_is_told_once(inventory: Inventory, changes, generation):
    await inventory.register("n1")
    await inventory.emitted()
    again = inventory.registered("n1", **changes)
    await inventory.feed.send(again)
    (event,) = await inventory.emitted()
    assert event.generation == generation
    assert event.boot_id == again.boot_id
    assert event.devices == again.devices
    assert (event.pool, event.labels, event.cpus) == (again.pool, again.labels, again.cpus)
    assert [row["uuid"] for row in await inventory.rows("devices")] == [device.uuid for device in again.devices]


async def test_several_facts_of_a_batch_are_told_as_their_outcome(inventory: Inventory):
    await inventory.feed.send(
        inventory.registered("n1"),
        inventory.registered("n1", boot_id="b2", cpus=4.0),
        inventory.report("n1"),
        inventory.registered("n2"),
    )
    events = await inventory.emitted()
    assert [(event.node, event.boot_id, event.generation) for event in events] == [("n1", "b2", 2), ("n2", "b1", 1)]


async def test_a_card_moved_to_another_node_is_in_one_node_only(inventory: Inventory):
    await inventory.feed.send(inventory.registered("n1", device("GPU-a"), device("GPU-b", 1)))
    await inventory.emitted()
    await inventory.feed.send(inventory.registered("n2", device("GPU-b")))
    events = {event.node: event for event in await inventory.emitted()}
    assert [facts.uuid for facts in events["n1"].devices] == ["GPU-a"]
    assert events["n1"].generation == 2
    assert [facts.uuid for facts in events["n2"].devices] == ["GPU-b"]
    assert [(row["uuid"], row["node"]) for row in await inventory.rows("devices")] == [("GPU-a", "n1"), ("GPU-b", "n2")]


async def test_nonsense_is_refused_and_stores_nothing(inventory: Inventory):
    with pytest.raises(Permanent, match="memory_bytes"):
        await inventory.feed.send(inventory.registered("n1"), inventory.registered("n2", memory_bytes=0))
    assert await inventory.rows("nodes") == []
    assert await inventory.emitted() == []


async def test_a_report_of_an_unknown_node_is_ignored(inventory: Inventory):
    await inventory.hear("ghost")
    assert await inventory.rows("nodes") == []
    await inventory.feed.send(inventory.report("ghost"), inventory.registered("n1"))
    assert list(await inventory.states()) == ["n1"]


async def test_inv_8_the_log_read_again_changes_nothing(inventory: Inventory):
    """An old report read again would make a dead node live, an old registration bring back its old boot."""
    await inventory.register("n1", "n2", "n3")
    await inventory.hear("n1", "n2")
    await inventory.feed.send(inventory.registered("n1", boot_id="b2", cpus=4.0))
    await inventory.feed.send(inventory.registered("n2", device("GPU-n1-0")))
    await inventory.keep_hearing(65, "n1")
    assert (await inventory.states())["n3"] == "lost"
    before = [await inventory.rows(table) for table in ("nodes", "devices", "clusters", "timers")]
    await inventory.emitted()

    records = inventory.feed.records
    for start in range(len(records)):
        inventory.clock.advance(0.001)
        await inventory.feed.deliver(records[start:])
        await inventory.feed.deliver(records[start : start + 1])
    assert [await inventory.rows(table) for table in ("nodes", "devices", "clusters", "timers")] == before
    assert await inventory.emitted() == []
