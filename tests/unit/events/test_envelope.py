"""CloudEvents headers: what goes out comes back; what is malformed says which header and why."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_events.envelope import MAX_PUBLISH_SEQ, Envelope, from_headers, publish_sequence

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))

envelopes = st.builds(
    Envelope,
    topic=words,
    key=words,
    id=words,
    type=words,
    source=words,
    subject=st.one_of(st.just(""), words),
    time=times,
    value=st.binary(max_size=100),
    correlation_id=st.none() | words,
    causation_id=st.none() | words,
    project_id=st.none() | words,
    publish_seq=st.none() | st.integers(0, MAX_PUBLISH_SEQ),
    extra=st.dictionaries(words.map(lambda word: f"x-{word}"), words, max_size=3),
)


@given(envelopes)
def test_headers_round_trip(envelope: Envelope) -> None:
    headers = envelope.headers()
    assert from_headers(envelope.topic, envelope.key, headers, envelope.value) == envelope
    assert all(isinstance(text, str) for text in headers.values())


def envelope(**changes: str) -> dict[str, str]:
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    base = Envelope("t", "k", id="evt-1", type="yard.x.y.v1", source="s", subject="k", time=time, value=b"{}").headers()
    return base | changes


@pytest.mark.parametrize("name", ["ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time"])
def test_a_missing_or_empty_attribute_is_named(name: str) -> None:
    without = {key: text for key, text in envelope().items() if key != name}
    for headers in (without, envelope(**{name: ""})):
        with pytest.raises(ValueError, match=name):
            from_headers("t", "k", headers, b"{}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ce_specversion", "0.3"),
        ("ce_time", "yesterday"),
        ("ce_time", "2026-01-02T03:04:05"),
        ("yard_publishseq", "-1"),
        ("yard_publishseq", "1.5"),
        ("yard_publishseq", ""),
        ("yard_publishseq", "x"),
        ("yard_publishseq", "٣"),
        ("yard_publishseq", str(2**63)),
        ("yard_publishseq", "9" * 5000),
    ],
    ids=lambda value: value[:24],
)
def test_a_malformed_attribute_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name if name != "ce_time" else "isoformat|ce_time"):
        from_headers("t", "k", envelope(**{name: text}), b"{}")


def test_a_time_ending_in_z_is_utc() -> None:
    received = from_headers("t", "k", envelope(ce_time="2026-01-02T03:04:05Z"), b"{}")
    assert received.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_extra_headers_cannot_replace_context_attributes() -> None:
    time = datetime(2026, 1, 2, tzinfo=UTC)
    forged = Envelope("t", "k", "evt-1", "a", "s", "k", time, b"{}", extra={"ce_id": "evt-2", "traceparent": "00-1"})
    assert forged.headers()["ce_id"] == "evt-1"
    assert forged.headers()["traceparent"] == "00-1"


def test_the_largest_sequence_is_accepted() -> None:
    assert publish_sequence({"yard_publishseq": str(MAX_PUBLISH_SEQ)}) == MAX_PUBLISH_SEQ
    assert publish_sequence({}) is None
