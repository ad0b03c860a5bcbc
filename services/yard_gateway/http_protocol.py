"""Limits on what a client may send before there is a request: uvicorn's parser has none of its own."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_REFUSAL = (
    "HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n"
    "connection: close\r\n\r\n{body}"
)


def limited_protocol(*, max_head_bytes: int, head_timeout_seconds: float) -> type[HttpToolsProtocol]:
    """A protocol class for `uvicorn.Config(http=…)`: a request line with headers of more than `max_head_bytes` is
    answered with 431, and one that is not complete after `head_timeout_seconds` ends the connection."""

    class LimitedProtocol(HttpToolsProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_bytes = 0
            self._in_head = True
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head_bytes += len(data)
            super().data_received(data)
            # The bytes of a body that came along with its headers count only while the headers are not complete.
            if self._in_head and self._head_bytes > max_head_bytes and not self.transport.is_closing():
                self._refuse()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head = True
            if self._head_timer is None:
                self._arm()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._head_bytes = 0
            self._disarm()
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > max_head_bytes:
                self._refuse()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head = True

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
            body = (
                '{"type":"about:blank","title":"Request header fields too large","status":431,'
                f'"detail":"The request line and headers may have at most {max_head_bytes} bytes."}}'
            )
            title = "Request Header Fields Too Large"
            answer = _REFUSAL.format(status=431, title=title, length=len(body), body=body)
            self.transport.write(answer.encode())
            self.transport.close()

    return LimitedProtocol
