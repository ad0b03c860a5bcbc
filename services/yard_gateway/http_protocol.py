"""Limits on what a client may send around a request: uvicorn's parser has none of its own."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_DISCARDED_BYTES = 16 * 1024 * 1024
"""How much of a body that was answered already is read and dropped, so that the client gets to read the answer."""


class _HeadTooLarge(Exception):
    """Stops the parser."""


def limited_protocol(*, max_head_bytes: int, head_timeout_seconds: float) -> type[HttpToolsProtocol]:
    """A protocol class for `uvicorn.Config(http=…)`: a request line with headers (or trailers) of more than
    `max_head_bytes` is answered with 431, and one not complete after `head_timeout_seconds` ends the connection."""

    class LimitedProtocol(HttpToolsProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._unparsed_head_bytes = 0
            self._field_bytes = 0
            self._in_head = True
            self._refused = False
            self._discarded_bytes = 0
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            if self._in_head:
                self._unparsed_head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._unparsed_head_bytes > max_head_bytes and not self._refused:
                self._refuse()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head = True
            self._field_bytes = 0
            if self._head_timer is None:
                self._arm()

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value))
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._unparsed_head_bytes = 0
            self._disarm()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self.cycle.response_complete:
                self._discarded_bytes += len(body)
                if self._discarded_bytes > _MAX_DISCARDED_BYTES:
                    self.transport.close()
            super().on_body(body)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head = True

        def send_400_response(self, msg: str) -> None:
            if not self._refused:
                super().send_400_response(msg)

        def _count(self, size: int) -> None:
            self._field_bytes += size
            if self._field_bytes > max_head_bytes:
                self._refuse()
                raise _HeadTooLarge

        def _arm(self) -> None:
            self._head_timer = self.loop.call_later(head_timeout_seconds, self._give_up)

        def _disarm(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

        def _refuse(self) -> None:
            self._refused = True
            body = (
                '{"type":"about:blank","title":"Request header fields too large","status":431,'
                f'"detail":"The request line and headers may have at most {max_head_bytes} bytes."}}'
            )
            head = (
                "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write((head + body).encode())
            self.transport.close()

    return LimitedProtocol
