"""From a log line to its trace."""

import pytest

from support.traces import REQUEST, Spans, trace_id
from yard_obs.logs import add_trace
from yard_obs.tracing import span


def test_lines_inside_a_span_have_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans.recorded(monkeypatch)
    with span("start task", parent=REQUEST):
        line = add_trace(None, "info", {"event": "started"})
    [recorded] = spans.named("start task")
    assert recorded.context is not None
    assert line == {
        "event": "started",
        "trace_id": trace_id(REQUEST),
        "span_id": format(recorded.context.span_id, "016x"),
    }


def test_lines_outside_have_none() -> None:
    assert add_trace(None, "info", {"event": "started"}) == {"event": "started"}
