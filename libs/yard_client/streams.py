"""The two kinds of stream, without I/O: server-sent events, and a position in a task's output."""

import json
from collections.abc import Iterator
from typing import cast

import httpx

from yard_client.errors import ServerFault
from yard_client.models import Event


class EventFeed:
    """Turns bytes of `text/event-stream` into events and remembers the last one, to resume after it."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        self._rest = b""
        self._data: list[str] = []

    def opened(self, response: httpx.Response) -> None:
        """A new connection begins with a whole event. Raises ServerFault when it is no stream of events."""
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise ServerFault(response.status_code, "the server answered with something else than a stream of events")
        self._rest, self._data = b"", []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            if line:
                self._field(line)
            elif self._data:
                text, self._data = "\n".join(self._data), []
                event = cast(Event, json.loads(text))
                self.after = event["seq"]
                yield event

    def _field(self, line: str) -> None:
        # `id` and `event` repeat what the data says; comments (`: keep-alive`) only show that the stream lives.
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))


class LogPosition:
    """How far a task's output was read, so that a broken stream goes on at the next byte."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def opened(self, response: httpx.Response) -> None:
        """The server may begin later than asked where the beginning of the output is gone."""
        first = response.headers.get("x-yard-offset", "")
        if first.isdigit():
            self.offset = int(first)

    def advance(self, chunk: bytes) -> None:
        self.offset += len(chunk)
