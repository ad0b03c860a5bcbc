"""The partitioner: in range, the same everywhere and for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_events.partitioner import partition_for

keys = st.text(st.characters(exclude_categories=["Cs"]))


@given(keys, st.integers(1, 1000))
def test_a_partition_is_in_range_and_stable(key: str, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions
    assert partition_for(key, partitions) == partition_for(key, partitions)


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    [("", 7, 0), ("local/default", 16, 2), ("node-1", 16, 15), ("job-0", 1, 0), ("é", 64, 62)],
)
def test_known_partitions_never_change(key: str, partitions: int, partition: int) -> None:
    assert partition_for(key, partitions) == partition


def test_keys_spread_over_all_partitions() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[partition_for(f"job-{number}", 16)] += 1
    assert min(counts) > 800
