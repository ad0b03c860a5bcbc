"""The load generator's HTTP: one keep-alive connection that sends the same request again and again.

A general client costs more CPU per request than the gateway does, on the very cores that are being measured; the SDK's
own cost is not what the pipeline benchmark is about.
"""

import asyncio
import json
from typing import Any


class LoadConnection:
    """Sends `body` as JSON to `path`; answers must carry a content length, as the gateway's do."""

    def __init__(self, address: str, path: str, token: str, body: bytes) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self) -> dict[str, Any]:
        """The answer's JSON. Raises RuntimeError for a status other than 2xx, and connection errors as they are."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        lengths = [line.split(":", 1)[1] for line in fields if line.lower().startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0]))
        if status.split(" ")[1][0] != "2":
            raise RuntimeError(f"{status}: {body.decode(errors='replace')[:500]}")
        return json.loads(body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
