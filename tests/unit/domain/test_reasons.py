"""One closed set of reasons, one sentence each."""

import re

import pytest

from yard_domain.reasons import SENTENCES, Reason, sentence


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    text = sentence(reason)
    assert text == sentence(reason.value)
    assert re.fullmatch(r"[A-Z].+\.", text)


def test_no_two_reasons_say_the_same() -> None:
    assert len(set(SENTENCES.values())) == len(SENTENCES) == len(Reason)


@pytest.mark.parametrize("reason", list(Reason))
def test_codes_can_be_metric_labels(reason: Reason) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", reason.value)


def test_nobody_can_invent_a_reason() -> None:
    with pytest.raises(ValueError, match="because"):
        sentence("because")
