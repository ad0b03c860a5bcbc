"""A proxy before PostgreSQL that can lose a connection at the worst moment: at its COMMIT."""

import asyncio
from contextlib import suppress
from enum import Enum
from pathlib import Path


class Sever(Enum):
    BEFORE_COMMIT = "the COMMIT never arrives"
    AFTER_COMMIT = "the COMMIT is carried out, its answer never arrives"


class SeveringProxy:
    """Listens on a unix socket in `folder` and forwards to the one in `upstream`; both named as PostgreSQL does."""

    def __init__(self, folder: Path, upstream: Path) -> None:
        self._path = folder / upstream.name
        self._upstream = upstream
        self._armed: Sever | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.severed = asyncio.Event()

    async def __aenter__(self) -> "SeveringProxy":
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def sever_next_commit(self, how: Sever) -> None:
        self._armed = how

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._upstream)
        severed: asyncio.Future[Sever] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                there = group.create_task(self._requests(reader, server_writer, severed))
                back = group.create_task(self._answers(server_reader, writer, severed))
                await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
        finally:
            for stream in (writer, server_writer):
                stream.close()
            if severed.done():
                self.severed.set()
            self._connections.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, severed: "asyncio.Future[Sever]"
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if self._armed is not None and b"COMMIT;" in data:
                    severed.set_result(self._armed)
                    self._armed = None
                    if severed.result() is Sever.BEFORE_COMMIT:
                        return
                writer.write(data)
                await writer.drain()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, severed: "asyncio.Future[Sever]"
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if severed.done():
                    return
                writer.write(data)
                await writer.drain()
