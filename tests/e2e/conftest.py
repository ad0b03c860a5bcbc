"""One installation for all tests that only use it; those that break it make their own."""

from collections.abc import Iterator

import pytest

from support.installation import Installation, installation


@pytest.fixture(scope="session")
def yard_up() -> Iterator[Installation]:
    with installation("--nodes", "2", "--devices", "4xH100-80GB") as made:
        made.up()
        yield made
