"""Whatever facts come in whatever order and grouping: no device is released early, nothing is said twice."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from support.lifecycle import Life
from yard_events import types

TASKS = 3
NODES = ("n1", "n2")
per_task = [
    f"{word} {rank}" for word in ("ready", "started", "exit0", "exit1", "stopped", "emptied") for rank in range(TASKS)
]
per_node = [f"{word} {node}" for word in ("lost", "back", "reboot", "newjournal", "backrebooted") for node in NODES]
facts = st.sampled_from([*per_task, *per_task, *per_node, "stop", "deadline", "wait"])
batches = st.lists(st.lists(facts, max_size=6), max_size=25)


def legal(life: Life, fact: str) -> bool:
    """What an agent can say: empty only after the end, the end of a gang's task only after it was prepared."""
    word, _, about = fact.partition(" ")
    if word == "emptied":
        return life.task(int(about)).exited
    if word == "started":
        return life.task(int(about)).command_type != "prepare" and not life.task(int(about)).exited
    if word in ("back", "backrebooted"):
        return life.nodes[about].state == "lost"
    return True


def play(told: list[list[str]], tasks: int = TASKS) -> Life:
    life = Life(tasks, nodes="n1 n2")
    for batch in told:
        for fact in batch:
            word, *arguments = fact.split()
            if legal(life, fact):
                getattr(life, f"_{word}")(*arguments)
        life.look()
        check(life)
    return life


def check(life: Life) -> None:
    kinds = Counter(type(event) for event in life.events)
    assert kinds[types.AttemptExited] <= 1
    assert kinds[types.AttemptStarted] <= 1
    released = [event.allocation_id for event in life.events if isinstance(event, types.AllocationReleased)]
    assert sorted(released) == sorted(set(released)) == sorted(life.released)
    for allocation in life.attempt.allocations:
        if allocation.released_at is not None:
            assert allocation.exited and allocation.emptied, "INV-10"  # noqa: PT018
            assert allocation.lost_since is None
        seconds = (allocation.released_at or life.now) - allocation.granted_at
        assert 0 <= allocation.lost_micros <= max(seconds.total_seconds(), 0.0) * 1e6 + 1000
    starts = [event.allocation_id for event in life.events if isinstance(event, types.StartTask)]
    assert len(starts) in (0, len(life.attempt.allocations)), "INV-3: a gang is started as a whole"
    assert len(set(starts)) == len(starts)
    stops = Counter(event.allocation_id for event in life.events if isinstance(event, types.StopTask))
    assert all(count == 1 for count in stops.values()), "a stop is sent once"
    if kinds[types.AttemptExited]:
        assert all(allocation.exited for allocation in life.attempt.allocations)
        assert life.state == "ended"
    times = [event.ledger_time for event in life.events if hasattr(event, "ledger_time")]
    assert times == sorted(set(times)), "ledger times rise strictly"


@given(batches)
@settings(max_examples=600, deadline=None)
def test_no_interleaving_breaks_an_attempt(told: list[list[str]]) -> None:
    life = play(told)
    said_before = len(life.events)
    life.look()
    assert len(life.events) == said_before, "nothing new says nothing"


@given(batches)
@settings(max_examples=300, deadline=None)
def test_a_whole_gang_that_is_told_to_end_ends(told: list[list[str]]) -> None:
    """INV-3, INV-5: from anywhere, when its nodes are back and every task has ended and emptied, all is handed back."""
    life = play(told)
    for node in NODES:
        if life.nodes[node].state == "lost":
            life.tell(f"back {node}")
    life.tell(*(f"{word} {rank}" for rank in range(TASKS) for word in ("stopped", "emptied")))
    check(life)
    assert life.state == "ended"
    assert sorted(life.released) == [f"a.t{rank}" for rank in range(TASKS)]


@given(batches)
@settings(max_examples=300, deadline=None)
def test_billing_and_ledger_agree_on_every_span(told: list[list[str]]) -> None:
    """INV-7: what billing makes of the decisions is what the ledger has, to the microsecond."""
    life = play(told)
    for node in NODES:
        if life.nodes[node].state == "lost":
            life.tell(f"back {node}")
    life.tell(*(f"{word} {rank}" for rank in range(TASKS) for word in ("stopped", "emptied")))
    for allocation in life.attempt.allocations:
        released = allocation.released_at
        assert released is not None
        granted = (released - allocation.granted_at).total_seconds() * 1e6 - allocation.lost_micros
        assert billed_micros(life, allocation.allocation_id) == round(granted)


def billed_micros(life: Life, allocation_id: str) -> int:
    """By billing's rules: a span opens at the grant or the return and closes at the loss or the release."""
    micros, since = 0, life.attempt.allocations[int(allocation_id[-1])].granted_at
    is_open, done = True, False
    for event in life.events:
        concerned = getattr(event, "allocation_ids", [getattr(event, "allocation_id", "")])
        if allocation_id not in concerned or done:
            continue
        if isinstance(event, types.AttemptRecovered) and not is_open:
            since, is_open = event.ledger_time, True
        elif isinstance(event, types.AttemptLost | types.AllocationReleased):
            done = isinstance(event, types.AllocationReleased)
            if is_open:
                end = event.ledger_time if done else min(max(event.last_contact, since), event.ledger_time)
                micros += round((end - since).total_seconds() * 1e6)
            is_open = False
    return micros
