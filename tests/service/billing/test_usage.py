"""Sums of usage: exact, cut to the stretch asked for, running spans included."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.billing import Billing, granted, job_id, lost, recovered, released, second
from support.feed import START
from yard_billing.usage import usage


async def total(billing: Billing, **query) -> tuple[int, int, int]:
    """(µs, µs of running spans, jobs)."""
    async with billing.store.reading() as connection:
        _, found = await usage(connection, group_by="project", as_of=billing.clock.now(), **query)
    return found.micros, found.open_micros, found.jobs


async def groups(billing: Billing, by, **query) -> dict:
    async with billing.store.reading() as connection:
        found, _ = await usage(connection, group_by=by, as_of=billing.clock.now(), **query)
    return {group.name: (group.micros / 1_000_000, group.jobs) for group in found}


async def test_nothing_used_is_a_total_of_zero(billing: Billing):
    async with billing.store.reading() as connection:
        found, sum_of_all = await usage(connection, group_by="job", as_of=START)
    assert found == []
    assert (sum_of_all.name, sum_of_all.micros, sum_of_all.open_micros, sum_of_all.jobs) == (None, 0, 0, 0)


@pytest.mark.parametrize(
    ("since", "until", "seconds"),
    [
        # a/0 holds 2 devices over [10, 20)
        (None, None, 20),
        (10, 20, 20),
        (0, 30, 20),
        (0, 10, 0),
        (20, 30, 0),
        (12, 15, 6),
        (None, 12.5, 5),
        (19.999999, None, 0.000002),
        (10, 10.000001, 0.000002),
    ],
)
async def test_a_closed_span_is_cut_to_the_stretch(billing: Billing, since, until, seconds):
    await billing.send(granted("a", 10, models=[("H100", "H100")]), released("a", 20))
    query = {"since": since and second(since), "until": until and second(until)}
    assert await total(billing, **query) == (round(seconds * 1_000_000), 0, 1 if seconds else 0)


@pytest.mark.parametrize(
    ("now", "since", "until", "seconds"),
    [
        (10, None, None, 0),
        (9, None, None, 0),
        (15, None, None, 5),
        (15, 12, None, 3),
        (15, None, 12, 2),
        (15, 15, 20, 0),
        (15, 0, 20, 5),
        (15, 0, 10, 0),
    ],
)
async def test_a_running_span_counts_up_to_now(billing: Billing, now, since, until, seconds):
    await billing.send(granted("a", 10))
    billing.clock.advance(now)
    query = {"since": None if since is None else second(since), "until": until and second(until)}
    micros = seconds * 1_000_000
    assert await total(billing, **query) == (micros, micros, 1 if seconds else 0)


async def test_what_was_closed_and_what_runs_are_told_apart(billing: Billing):
    await billing.send(granted("a", 0), granted("b", 0.5), released("a", 10))
    await billing.send(lost("b", 60, last_contact=4.5), recovered("b", 70))
    billing.clock.advance(75)
    assert await total(billing) == (19_000_000, 5_000_000, 2)


async def test_groups_and_filters(billing: Billing):
    await billing.send(
        granted("a", 0, models=[("H100", "A100")], project="p1", queue="q1"),
        granted("b", 0.1, project="p2", queue="q1"),
        granted("c", 0.2, project="p1", queue="q2"),
        released("a", 10),
        released("b", 10.1),
    )
    billing.clock.advance(1.2)
    assert await groups(billing, "project") == {"p1": (21, 2), "p2": (10, 1)}
    assert await groups(billing, "queue") == {"q1": (30, 2), "q2": (1, 1)}
    assert await groups(billing, "job") == {job_id("a"): (20, 1), job_id("b"): (10, 1), job_id("c"): (1, 1)}
    assert await groups(billing, "model") == {"H100": (21, 3), "A100": (10, 1)}
    assert await groups(billing, "project", queues=["q1"]) == {"p1": (20, 1), "p2": (10, 1)}
    assert await groups(billing, "queue", projects=["p1", "p3"]) == {"q1": (20, 1), "q2": (1, 1)}
    assert await groups(billing, "model", jobs=[job_id("a"), job_id("c")]) == {"H100": (11, 2), "A100": (10, 1)}
    assert await groups(billing, "model", projects=[]) == {}
    assert list(await groups(billing, "project")) == ["p1", "p2"], "most used first"


_MICROS = st.integers(0, 5_000_000)
_LIFE = st.tuples(_MICROS, st.lists(_MICROS, max_size=5), st.integers(1, 3))
"""(start, steps between granted, lost, recovered, lost, …, number of devices); an odd end stays open."""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=st.lists(_LIFE, min_size=1, max_size=4), cuts=st.lists(st.integers(-1_000_000, 30_000_000), max_size=5))
async def test_the_parts_of_any_partition_of_time_add_up_to_the_whole(billing: Billing, lives, cuts):
    """And the whole is what integer arithmetic on the facts gives."""
    project = f"p{len(billing.feed.records)}"
    now = 20_000_000
    expected = 0
    for number, (start, steps, devices) in enumerate(lives):
        job = f"{project}j{number}"
        await billing.send(granted(job, start / 1_000_000, models=[("H100",) * devices], project=project))
        time, opened = start, start
        for index, step in enumerate(steps):
            time += step + 1
            if index % 2 == 0:
                await billing.send(lost(job, time / 1_000_000, last_contact=(time - 1) / 1_000_000, project=project))
                expected += devices * (time - 1 - opened)
            else:
                await billing.send(recovered(job, time / 1_000_000, project=project))
                opened = time
        if len(steps) % 2 == 0:
            expected += devices * max(0, now - opened)
    billing.clock.advance(now / 1_000_000 - (billing.clock.now() - START).total_seconds())

    edges = [None, *(START + timedelta(microseconds=cut) for cut in sorted(set(cuts))), None]
    parts = [
        await total(billing, since=since, until=until, projects=[project]) for since, until in itertools.pairwise(edges)
    ]
    assert sum(micros for micros, _, _ in parts) == expected
    assert (await total(billing, projects=[project]))[0] == expected
