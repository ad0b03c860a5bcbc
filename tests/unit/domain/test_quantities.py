"""Durations, sizes and cores as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_domain.quantities import (
    MAX_DURATION_SECONDS,
    MAX_MEMORY_BYTES,
    format_bytes,
    format_seconds,
    parse_cpus,
    parse_duration_seconds,
    parse_memory_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90.0),
        (1.5, 1.5),
        ("90s", 90.0),
        ("250ms", 0.25),
        ("1ms", 0.001),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1d2h3m4s", 93784.0),
        (" 2d ", 172_800.0),
        ("2w", 1_209_600.0),
        ("366d", float(MAX_DURATION_SECONDS)),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "s", "90", "1.5h", "-5s", "1h-30m", "1h 30m", "h1", "1y", "90S", "1e3s", "1h\n30m", "１h", "٣s"),
        *("0s", "0h0m", "367d", "9" * 30 + "s", "9" * 5000 + "s", "1s" * 100),
        *(0, -1, 0.0, -0.5, 0.0009, 1e-300, 10**400, -(10**400), float("inf"), float("-inf"), float("nan")),
        *(True, False, None, [], {}, b"90s", ("90s",)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_duration_says_what_would_be(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (1073741824, 2**30),
        ("1", 1),
        ("17B", 17),
        ("1KiB", 1024),
        ("1KB", 1000),
        ("512 MB", 512_000_000),
        ("16GiB", 16 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1024TiB", MAX_MEMORY_BYTES),
        (str(MAX_MEMORY_BYTES - 1), MAX_MEMORY_BYTES - 1),
    ],
)
def test_sizes_are_read(text: object, size: int) -> None:
    assert parse_memory_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "GiB", "-1GiB", "1e400GiB", "1e3", "0x10", "inf", "nan", "infGiB", "1 GiB GiB", "1gib", "1PiB", "１GiB"),
        *("0", "0GiB", "0.0001B", "1025TiB", "9" * 30 + "TiB", "9" * 5000, "1" + " " * 50 + "B", "1\0B"),
        *(0, -1, 10**400, MAX_MEMORY_BYTES + 1, 1.5, float("inf"), float("nan"), True, None, [], {}, b"1GiB"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_size_says_what_would_be(text: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_memory_bytes(text)


@pytest.mark.parametrize(("value", "cores"), [(1, 1.0), (0.5, 0.5), (4096, 4096.0), (0.001, 0.001)])
def test_cores_are_read(value: object, cores: float) -> None:
    assert parse_cpus(value) == cores


@pytest.mark.parametrize(
    "value",
    [0, -1, 4097, 10**400, 5e-324, float("nan"), float("inf"), True, False, "4", None, []],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_number_of_cores_says_the_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"from 0\.001 to 4096"):
        parse_cpus(value)


@given(st.integers(1, MAX_DURATION_SECONDS * 1000))
def test_a_duration_in_milliseconds_is_exact_to_the_float(milliseconds: int) -> None:
    assert parse_duration_seconds(f"{milliseconds}ms") == milliseconds / 1000


@given(st.integers(1, MAX_MEMORY_BYTES))
def test_a_size_in_bytes_is_exact(size: int) -> None:
    assert parse_memory_bytes(str(size)) == parse_memory_bytes(f"{size}B") == parse_memory_bytes(size) == size


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.binary(), st.lists(st.text())))
def test_a_parser_answers_any_value_with_a_value_in_range_or_a_value_error(value: object) -> None:
    for parse, top in (
        (parse_duration_seconds, MAX_DURATION_SECONDS),
        (parse_memory_bytes, MAX_MEMORY_BYTES),
        (parse_cpus, 4096),
    ):
        try:
            result = parse(value)
        except ValueError:
            continue
        assert 0 < result <= top


@given(st.integers(1, MAX_MEMORY_BYTES))
def test_a_formatted_size_reads_back_to_within_its_four_digits(size: int) -> None:
    assert abs(parse_memory_bytes(format_bytes(size)) - size) <= max(1, size * 0.0006)


@pytest.mark.parametrize(
    ("size", "text"), [(17, "17 B"), (1024, "1 KiB"), (512 * 2**20, "512 MiB"), (80 * 2**30, "80 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0s"), (4.25, "4.2s"), (43.9, "43s"), (310, "5m10s"), (7380, "2h03m"), (273_600, "3d04h")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
