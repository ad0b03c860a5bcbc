"""When an allocation costs something. Times are whole microseconds after START."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.billing import granted
from support.feed import START
from yard_billing.spans import Account, Span, line_id, open_account
from yard_domain.errors import Permanent


def micro(number: int):
    return START + timedelta(microseconds=number)


def account(*models: str, at: float = 0) -> Account:
    fact = granted("a", at, models=[models or ("H100",)])
    return open_account(fact, fact.allocations[0])


def apply(subject: Account, *facts: tuple) -> list[tuple[int, int, int]]:
    """(number, since, until) of the spans that these facts closed: ("lost", t, last contact), ("recovered", t), …"""
    spans: list[Span | None] = []
    for name, time, *rest in facts:
        if name == "lost":
            spans.append(subject.lose(micro(time), micro(rest[0])))
        elif name == "recovered":
            subject.recover(micro(time))
        else:
            spans.append(subject.release(micro(time)))
    unit = timedelta(microseconds=1)
    return [(s.number, (s.since - START) // unit, (s.until - START) // unit) for s in spans if s is not None]


@pytest.mark.parametrize(
    ("facts", "closed"),
    [
        ([], []),
        ([("released", 10)], [(1, 0, 10)]),
        ([("released", 0)], [(1, 0, 0)]),
        ([("released", 10), ("released", 20)], [(1, 0, 10)]),
        ([("lost", 10, 4)], [(1, 0, 4)]),
        # the last contact is another clock: never before the span, never after the decision
        ([("lost", 10, -5)], [(1, 0, 0)]),
        ([("lost", 10, 15)], [(1, 0, 10)]),
        ([("lost", 10, 4), ("released", 20)], [(1, 0, 4)]),
        ([("lost", 10, 4), ("recovered", 15)], [(1, 0, 4)]),
        ([("lost", 10, 4), ("recovered", 15), ("released", 20)], [(1, 0, 4), (2, 15, 20)]),
        ([("lost", 10, 4), ("recovered", 15), ("lost", 30, 12)], [(1, 0, 4), (2, 15, 15)]),
        ([("lost", 10, 4), ("recovered", 15), ("lost", 30, 20), ("released", 40)], [(1, 0, 4), (2, 15, 20)]),
        ([("lost", 5, 4), ("recovered", 6), ("lost", 8, 7), ("recovered", 9), ("released", 9)],
         [(1, 0, 4), (2, 6, 7), (3, 9, 9)]),
        # repeats and late ones
        ([("lost", 10, 4), ("lost", 10, 4)], [(1, 0, 4)]),
        ([("lost", 10, 4), ("lost", 12, 11)], [(1, 0, 4)]),
        ([("lost", 10, 4), ("recovered", 15), ("lost", 10, 4), ("released", 20)], [(1, 0, 4), (2, 15, 20)]),
        ([("lost", 10, 4), ("recovered", 15), ("lost", 30, 20), ("recovered", 15), ("released", 40)],
         [(1, 0, 4), (2, 15, 20)]),
        ([("recovered", 5), ("released", 10)], [(1, 0, 10)]),
        ([("released", 10), ("lost", 20, 15), ("recovered", 30)], [(1, 0, 10)]),
        ([("lost", 10, 4), ("released", 20), ("recovered", 30), ("released", 40)], [(1, 0, 4)]),
    ],
)  # fmt: skip
def test_spans_of_every_order_of_facts(facts, closed):
    assert apply(account(), *facts) == closed


def test_a_release_before_its_own_grant_is_nonsense():
    with pytest.raises(Permanent, match="before"):
        account(at=1).release(micro(999_999))


def test_devices_are_counted_by_model_and_time_is_exact():
    subject = account("H100", "A100", "H100")
    span = subject.release(micro(3_600_000_001))
    assert span is not None
    lines = subject.lines(span)
    assert [(line.model, line.devices, line.device_micros) for line in lines] == [
        ("A100", 1, 3_600_000_001),
        ("H100", 2, 7_200_000_002),
    ]
    assert [line.line_id for line in lines] == ["a/0:1:A100", "a/0:1:H100"]


@pytest.mark.parametrize("models", [[()], [("H100", "")]])
def test_a_grant_of_nothing_is_nonsense(models):
    fact = granted("a", 0, models=models)
    with pytest.raises(Permanent):
        open_account(fact, fact.allocations[0])


def test_a_device_granted_twice_is_nonsense():
    fact = granted("a", 0, models=[("H100",)])
    twice = fact.allocations[0].model_copy(update={"devices": fact.allocations[0].devices * 2})
    with pytest.raises(Permanent, match="2 devices, 1 different"):
        open_account(fact, twice)


def test_lines_never_share_an_id():
    parts = [(a, m, s) for a in ("a", "a1") for m in ("1:H", "H", "1") for s in (1, 11)]
    assert len({line_id(*part) for part in parts}) == len(parts)


_FACT = st.tuples(st.sampled_from(["lost", "recovered", "released"]), st.integers(1, 50), st.integers(-10, 60))


@given(st.lists(_FACT, max_size=12), st.data())
def test_inv_8_facts_read_again_from_any_offset_close_nothing_more(facts, data):
    """Facts at rising ledger times, as placement's clock gives them, with any last contact and in any order."""
    now, ordered = 0, []
    for name, step, contact in facts:
        now += step
        ordered.append((name, now, contact) if name == "lost" else (name, now))
    subject = account()
    closed = apply(subject, *ordered)
    for (_, _, until), (_, since, _) in itertools.pairwise(closed):
        assert until <= since, "spans do not overlap"
    assert all(0 <= since <= until <= now for _, since, until in closed)
    assert [number for number, _, _ in closed] == list(range(1, len(closed) + 1))

    before = [getattr(subject, name) for name in subject.__slots__]
    start = data.draw(st.integers(0, len(ordered)))
    assert apply(subject, *ordered[start:]) == []
    assert [getattr(subject, name) for name in subject.__slots__] == before
