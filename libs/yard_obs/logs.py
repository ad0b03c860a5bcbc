"""Structured logs: one JSON object a line in services, readable lines on a terminal."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from opentelemetry import trace

_SECRET_WORDS = ("token", "secret", "password", "authorization", "credential")


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """No secret in logs: values whose name says what they are never get out."""
    for name in event:
        if any(word in name.lower() for word in _SECRET_WORDS):
            event[name] = "[redacted]"
    return event


def add_trace(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The ids of the span that is current where the line is written, if there is one: from a log to its trace."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def configure_logs(*, level: str = "INFO", json_lines: bool | None = None) -> None:
    """Set up structlog and the standard library's logging once per process; JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json_lines is None else json_lines
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_trace,
        redact,
    ]
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # Plain tracebacks: the coloured ones print local variables, and with them secrets.
        else [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(levelname)s %(name)s %(message)s", force=True)
