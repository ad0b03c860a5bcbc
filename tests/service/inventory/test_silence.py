"""Silent nodes, silent clusters, and inventory's own silence."""

from support.feed import ManualClock
from support.inventory import Inventory, inventory_on
from yard_runtime.service import Runtime


async def test_one_silent_node_becomes_suspect_then_lost_with_its_last_contact(inventory: Inventory):
    await inventory.register("n1", "n2")
    last_contact = inventory.clock.now()
    await inventory.emitted()

    await inventory.keep_hearing(10, "n1")
    assert await inventory.told() == []
    await inventory.keep_hearing(10, "n1")
    assert await inventory.told() == [("n2", "suspect")]
    await inventory.keep_hearing(35, "n1")
    assert await inventory.told() == []
    await inventory.keep_hearing(10, "n1")
    (lost,) = await inventory.emitted()
    assert (lost.node, lost.state, lost.last_contact) == ("n2", "lost", last_contact)
    assert len(lost.devices) == 2, "the whole node is told, not only its state"
    await inventory.keep_hearing(60, "n1")
    assert await inventory.told() == []


async def test_a_lost_node_that_reports_is_ready_again(inventory: Inventory):
    await inventory.register("n1", "n2")
    await inventory.keep_hearing(65, "n1")
    assert await inventory.states() == {"n1": "ready", "n2": "lost"}
    await inventory.emitted()
    await inventory.hear("n2")
    (event,) = await inventory.emitted()
    assert (event.node, event.state, event.last_contact) == ("n2", "ready", inventory.clock.now())
    await inventory.look()
    await inventory.keep_hearing(20, "n1")
    assert await inventory.told() == [("n2", "suspect")], "it is watched again"


async def test_a_short_break_of_contact_loses_nothing(inventory: Inventory):
    """kueue#12999: a transient reconnect evicted a running job. The grace counts from the first silence."""
    await inventory.register("n1", "n2")
    await inventory.emitted()
    await inventory.keep_hearing(55, "n1")
    assert await inventory.told() == [("n2", "suspect")]
    await inventory.hear("n2")
    await inventory.look()
    assert await inventory.told() == [("n2", "ready")]
    await inventory.keep_hearing(10, "n1")
    assert await inventory.told() == [], "the old silence is forgotten"
    await inventory.keep_hearing(45, "n1")
    assert await inventory.told() == [("n2", "suspect")]
    await inventory.keep_hearing(10, "n1")
    assert await inventory.told() == [("n2", "lost")], "60 s after its last contact, not after it became suspect"


async def test_when_all_nodes_are_silent_nobody_is_lost(inventory: Inventory):
    """armada#315: an outage of the server expired every lease and killed healthy jobs."""
    await inventory.register("n1", "n2", "n3")
    await inventory.emitted()
    await inventory.wait_looking(3600)
    assert sorted(await inventory.told()) == [("n1", "suspect"), ("n2", "suspect"), ("n3", "suspect")]
    assert (await inventory.rows("clusters"))[0]["frozen_since"] is not None

    await inventory.hear("n1")
    await inventory.look()
    assert await inventory.told() == [("n1", "ready")]
    await inventory.keep_hearing(20, "n1")
    await inventory.hear("n2")
    await inventory.look()
    assert await inventory.told() == [("n2", "ready")], "nobody is lost within the grace"
    await inventory.keep_hearing(5, "n1", "n2")
    assert await inventory.told() == []
    await inventory.keep_hearing(10, "n1", "n2")
    assert await inventory.told() == [("n3", "lost")], "after the grace, one that did not come back is lost"


async def test_the_downtime_of_inventory_is_nobodys_silence(inventory: Inventory):
    await inventory.register("n1", "n2")
    last_contact = inventory.clock.now()
    await inventory.emitted()
    inventory.clock.advance(3600)
    await inventory.start()
    assert await inventory.told() == []
    await inventory.keep_hearing(10, "n1")
    assert await inventory.told() == []
    await inventory.keep_hearing(45, "n1")
    assert await inventory.told() == [("n2", "suspect")]
    await inventory.keep_hearing(10, "n1")
    (lost,) = await inventory.emitted()
    assert (lost.node, lost.state) == ("n2", "lost")
    assert lost.last_contact == last_contact, "bills stop at the true last contact"


async def test_a_standstill_of_inventory_is_nobodys_silence(inventory: Inventory):
    """A suspended laptop, a stopped process, a database away: the look that was due comes an hour late."""
    await inventory.register("n1")
    await inventory.emitted()
    await inventory.look_at(3600)
    assert await inventory.told() == []
    await inventory.wait_looking(14)
    assert await inventory.told() == []
    await inventory.wait_looking(60)
    assert await inventory.told() == [("n1", "suspect"), ("n1", "lost")]


async def test_a_single_node_is_lost_by_its_own_silence(inventory: Inventory):
    await inventory.register("n1")
    await inventory.emitted()
    await inventory.wait_looking(59)
    assert await inventory.told() == [("n1", "suspect")]
    await inventory.wait_looking(1)
    assert await inventory.told() == [("n1", "lost")]
    assert await inventory.due_in() is None, "nothing is left to look for"


async def test_one_timer_for_a_cluster_of_any_size(inventory: Inventory):
    await inventory.register(*(f"n{number}" for number in range(50)))
    assert len(await inventory.rows("timers")) == 1
    assert await inventory.due_in() == 15


async def test_a_frozen_cluster_waits_for_a_contact_and_for_no_timer(inventory: Inventory):
    await inventory.register("n1", "n2")
    await inventory.wait_looking(20)
    assert await inventory.due_in() is None
    await inventory.hear("n2")
    await inventory.look()
    assert await inventory.due_in() == 15


async def test_many_transitions_are_made_in_bounded_steps(runtime: Runtime):
    inventory = await inventory_on(runtime, ManualClock(), transitions_per_cycle=3)
    await inventory.start()
    names = [f"n{number}" for number in range(7)]
    await inventory.register("heard", *names)
    await inventory.keep_hearing(65, "heard")
    assert await inventory.states() == {"heard": "ready"} | dict.fromkeys(names, "lost")
