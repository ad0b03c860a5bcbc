"""From placement's decisions to usage lines, on a real database."""

import itertools

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from support.billing import Billing, granted, job_id, lost, recovered, released, second
from yard_billing import repository
from yard_domain.errors import Permanent


async def test_a_released_allocation_is_one_published_line(billing: Billing):
    await billing.send(granted("a", 1, models=[("H100", "H100")], project="p", queue="q"))
    assert await billing.lines() == []
    await billing.send(released("a", 3.5, granted_at=1, project="p"))
    assert await billing.lines() == [("a/0", "H100", 1, 1, 3.5, 5_000_000)]
    (event,) = await billing.published()
    assert event.model_dump() == {
        "line_id": "a/0:1:H100",
        "project_id": "p",
        "queue": "q",
        "job_id": job_id("a"),
        "attempt": 1,
        "allocation_id": "a/0",
        "model": "H100",
        "devices": 2,
        "since": second(1),
        "until": second(3.5),
        "device_micros": 5_000_000,
    }


async def test_a_gang_of_two_models_is_billed_by_allocation_and_model(billing: Billing):
    await billing.send(granted("a", 0, models=[("H100", "A100"), ("H100",)]))
    await billing.send(released("a", 2, rank=1), released("a", 3, rank=0))
    assert await billing.lines() == [
        ("a/0", "A100", 1, 0, 3, 3_000_000),
        ("a/0", "H100", 1, 0, 3, 3_000_000),
        ("a/1", "H100", 1, 0, 2, 2_000_000),
    ]


async def test_granted_and_released_in_one_batch(billing: Billing):
    await billing.send(granted("a", 0), granted("b", 0.000001), released("a", 0.000003), released("b", 0.000003))
    assert [line[-1] for line in await billing.lines()] == [3, 2]


LIVES = [
    [granted("a", 0), released("a", 9)],
    [granted("a", 0), lost("a", 60, last_contact=5), released("a", 90)],
    [granted("a", 0), lost("a", 60, last_contact=5), recovered("a", 70), released("a", 90)],
    [granted("a", 0), lost("a", 60, last_contact=5), recovered("a", 70), lost("a", 140, last_contact=75)],
    # a late recovery of what was released meanwhile
    [granted("a", 0), lost("a", 60, last_contact=5), released("a", 70), recovered("a", 80), released("a", 90)],
    [
        granted("a", 0, models=[("H100",), ("H100", "A100")]),
        lost("a", 60, last_contact=5, ranks=[1]),
        released("a", 65),
        recovered("a", 70, ranks=[1]),
        released("a", 90, rank=1),
    ],
]
BILLED = [9, 5, 5 + 20, 5 + 5, 5, 65 + 2 * (5 + 20)]


@pytest.mark.parametrize(("life", "seconds"), list(zip(LIVES, BILLED, strict=True)))
async def test_however_a_life_is_cut_into_batches_it_costs_the_same(billing: Billing, life, seconds):
    outcomes = []
    for number, cuts in enumerate(_all_cuts(len(life))):
        name = f"a{number}"
        facts = [_renamed(fact, name) for fact in life]
        for first, last in itertools.pairwise([0, *cuts, len(facts)]):
            await billing.send(*facts[first:last])
        outcomes.append(sum(line[-1] for line in await billing.lines() if line[0].startswith(f"{name}/")))
    assert outcomes == [seconds * 1_000_000] * len(outcomes)


def _all_cuts(length: int):
    return [cut for size in range(length) for cut in itertools.combinations(range(1, length), size)]


def _renamed(fact, name: str):
    renamed = type(fact).model_validate_json(fact.model_dump_json().replace('"a/', f'"{name}/'))
    return renamed.model_copy(update={"job_id": job_id(name), "attempt_id": f"att-{name}"})


@pytest.mark.parametrize("life", LIVES)
async def test_inv_8_the_log_read_again_changes_nothing(billing: Billing, life):
    await billing.send(*life)
    await billing.send(granted("z", 200))
    before = [await billing.rows(table) for table in ("accounts", "usage_lines")]
    published = len(await billing.published())
    records = billing.feed.records
    for start in range(len(records)):
        await billing.feed.deliver(records[start:])
        await billing.feed.deliver(records[start : start + 1])
        await billing.feed.deliver([records[start], records[start]])
    assert [await billing.rows(table) for table in ("accounts", "usage_lines")] == before
    assert len(await billing.published()) == published


async def test_a_batch_costs_three_statements_and_the_append(billing: Billing):
    await billing.send(*(granted(f"a{n}", n) for n in range(50)))
    statements: list[str] = []

    def remember(_connection, _cursor, statement, *_rest):
        statements.append(statement)

    engine = billing.runtime.engine.sync_engine
    sa.event.listen(engine, "before_cursor_execute", remember)
    try:
        await billing.send(
            *(released(f"a{n}", 100 + n) for n in range(50)), *(granted(f"b{n}", 200 + n) for n in range(50))
        )
    finally:
        sa.event.remove(engine, "before_cursor_execute", remember)
    assert len(statements) == 4, statements
    assert len(await billing.lines()) == 50


@pytest.mark.parametrize(
    "change",
    ["UPDATE billing.usage_lines SET devices = 2", "DELETE FROM billing.usage_lines", "TRUNCATE billing.usage_lines"],
)
async def test_a_line_cannot_be_changed(billing: Billing, change: str):
    await billing.send(granted("a", 0), released("a", 1))
    with pytest.raises(DBAPIError, match="immutable"):
        async with billing.store.unit_of_work() as uow:
            await uow.connection.execute(sa.text(change))
    assert len(await billing.lines()) == 1


@pytest.mark.parametrize("field", ["device_micros", "until"])
async def test_a_line_that_is_not_exact_is_refused_by_the_database(billing: Billing, field: str):
    await billing.send(granted("a", 0), released("a", 1))
    row = {"device_micros": "device_micros + 1", "until": "since - interval '1 s'"}
    columns = "allocation_id, model, 2, project_id, queue, job_id, attempt, devices, since"
    values = [row["until"] if field == "until" else "until", row[field] if field == "device_micros" else "-1000000"]
    with pytest.raises(DBAPIError, match="violates check constraint"):
        async with billing.store.unit_of_work() as uow:
            await uow.connection.execute(
                sa.text(
                    f"INSERT INTO billing.usage_lines SELECT {columns}, {', '.join(values)} FROM billing.usage_lines"
                )
            )


@pytest.mark.parametrize(
    "nonsense",
    [
        granted("b", 0, models=[]),
        granted("b", 0, models=[()]),
        granted("b", 0).model_copy(update={"ledger_time": second(0).replace(tzinfo=None)}),
        granted("b", 0).model_copy(update={"allocations": granted("a", 0).allocations}),
        lost("a", 1, last_contact=0).model_copy(update={"last_contact": second(0).replace(tzinfo=None)}),
        released("a", -1),
    ],
)
async def test_nonsense_is_refused_and_stores_nothing(billing: Billing, nonsense):
    await billing.send(granted("a", 0))
    with pytest.raises(Permanent):
        await billing.send(granted("c", 1), nonsense)
    assert [row["allocation_id"] for row in await billing.rows("accounts")] == ["a/0"]


async def test_the_end_of_an_unknown_allocation_does_not_stop_the_bills_of_the_rest(billing: Billing):
    await billing.send(granted("a", 0), released("ghost", 1), lost("ghost", 2, last_contact=1), released("a", 3))
    assert await billing.lines() == [("a/0", "H100", 1, 0, 3, 3_000_000)]


async def test_inv_7_figures_for_the_audit(billing: Billing):
    await billing.send(
        granted("a", 0, models=[("H100", "H100"), ("A100",)]),
        granted("b", 1),
        lost("a", 60, last_contact=5, ranks=[1]),
        released("a", 10),
    )
    async with billing.store.reading() as connection:
        found = await repository.billed_per_allocation(connection)
    assert {key: (f.device_micros, f.open, f.released, f.attempt) for key, f in found.items()} == {
        "a/0": (20_000_000, False, True, 1),
        "a/1": (5_000_000, False, False, 1),
        "b/0": (0, True, False, 1),
    }
