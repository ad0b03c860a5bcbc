"""What may be a name: it becomes part of keys, scopes, file names and URLs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yard_domain.names import JOB_ID, is_name, pool_key
from yard_runtime.clock import SystemIds


@pytest.mark.parametrize("name", ["a", "7", "default", "llama-3.1_8b", "a" * 63, "a.b.c", "0-0"])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "A",
            "Train",
            "-a",
            "a-",
            ".a",
            "a.",
            "_a",
            "a_",
            "a" * 64,
            "a b",
            "a\n",
            "\na",
            "a\0",
            "é",
            "ａ",
            "١",
        ),
        *("..", ".", "a..b", "../a", "a/b", "a\\b", "/etc/passwd", "~", "a%2fb", "a:b", "a\u200bb", "a\ud800"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_not_names(name: str) -> None:
    assert not is_name(name)


@given(st.text(max_size=70))
def test_a_name_is_safe_in_paths_urls_and_keys(name: str) -> None:
    if is_name(name):
        assert name.isascii()
        assert not set(name) & set("/\\%:?#\0 \n\t")
        assert ".." not in name
        assert len(name) <= 63
        assert name == name.lower()


def test_job_ids_are_recognised() -> None:
    assert JOB_ID.fullmatch(SystemIds().new("job"))
    for text in (
        "job-",
        "job-x",
        SystemIds().new("evt"),
        SystemIds().new("job") + "\n",
        SystemIds().new("job").upper(),
    ):
        assert JOB_ID.fullmatch(text) is None


def test_a_pool_key_names_cluster_and_pool() -> None:
    assert pool_key("local", "default") == "local/default"
