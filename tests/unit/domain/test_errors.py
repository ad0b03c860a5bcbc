"""The error tree: the class tells the caller what to do, so no class may be two of them."""

import pytest

from yard_domain.errors import Conflict, Fenced, InvalidField, Permanent, Retryable, YardError


@pytest.mark.parametrize("kind", [Retryable, Permanent, Conflict, Fenced])
def test_kinds_exclude_one_another(kind: type[YardError]) -> None:
    others = {Retryable, Permanent, Conflict, Fenced} - {kind}
    assert issubclass(kind, YardError)
    assert not any(issubclass(kind, other) for other in others)


@pytest.mark.parametrize(("field", "text"), [("tasks.gpus", "tasks.gpus: must be above 0"), ("", "must be above 0")])
def test_an_invalid_field_names_itself(field: str, text: str) -> None:
    error = InvalidField(field, "must be above 0")
    assert (str(error), error.field, error.message) == (text, field, "must be above 0")
    assert isinstance(error, ValueError)
