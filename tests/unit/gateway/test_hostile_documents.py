"""Documents that cost more than they should, or that the answer itself tripped over."""

import pytest

from yard_gateway.document_reading import _JSON_TOKEN, read_json, read_yaml
from yard_runtime.http import Problem


def test_a_string_that_never_ends_is_one_token() -> None:
    """It was tried again from every one of its quotes: 40 KB kept the process busy for six seconds."""
    text = "[]" * 33 + '"' + '\\"' * 20_000
    assert sum(1 for _ in _JSON_TOKEN.finditer(text)) == 67
    with pytest.raises(Problem):
        read_json(text.encode())


def test_a_string_that_ends_in_the_middle_of_an_escape_is_one_token() -> None:
    assert [token[0] for token in _JSON_TOKEN.finditer('["ab\\')] == ["[", '"ab\\']


def test_a_key_that_is_a_number_of_thousands_of_digits_is_refused_like_any_number() -> None:
    with pytest.raises(Problem) as refused:
        read_yaml(("? 0x" + "f" * 6000 + "\n: 1").encode())
    assert refused.value.status == 422
