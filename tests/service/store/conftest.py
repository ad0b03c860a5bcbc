from collections.abc import Iterator
from pathlib import Path

import pytest

from service.store.embedded_bench import EmbeddedBench


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBench]:
    bench = EmbeddedBench(tmp_path)
    yield bench
    bench.end()
