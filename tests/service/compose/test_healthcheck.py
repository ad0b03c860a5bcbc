"""The image's health check against real listeners, run as the engine runs it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from support.compose_stack import COMPOSE
from support.free_ports import free_ports
from yard_runtime.host import server_for


@asynccontextmanager
async def _answering(listen: str, status: int) -> AsyncIterator[None]:
    app = FastAPI()

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        return JSONResponse({"waiting_for": [] if status == 200 else ["placement"]}, status)

    server = server_for(app, listen)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await serving


async def _check(**environ: str) -> tuple[int, str]:
    command = [sys.executable, "-I", "-S", str(COMPOSE / "healthcheck.py")]
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, text=True, timeout=10)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
async def test_it_says_what_readyz_says(status: int, code: int) -> None:
    [port] = free_ports(1)
    async with _answering(f"127.0.0.1:{port}", status):
        # As in the image: the service listens at every address.
        answer = await _check(YARD_LISTEN=f"0.0.0.0:{port}")
    assert answer[0] == code
    assert answer[1].startswith(f"{status} ")
    assert ("placement" in answer[1]) == (status == 503)


async def test_it_asks_a_unix_socket(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path / 's'}"
    async with _answering(listen, 200):
        assert (await _check(YARD_LISTEN=listen))[0] == 0


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "unix:/nowhere/s", "", "nonsense"])
async def test_what_does_not_answer_is_unhealthy(listen: str) -> None:
    code, said = await _check(YARD_LISTEN=listen)
    assert code == 1
    assert "no answer at" in said


async def test_something_else_that_listens_is_unhealthy() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert (await _check(YARD_LISTEN=f"0.0.0.0:{port}"))[0] == 1


async def test_something_that_accepts_and_says_nothing_is_unhealthy_in_time() -> None:
    quiet = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await quiet.wait()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            async with asyncio.timeout(3):  # the engine's limit
                code, said = await _check(YARD_LISTEN=f"0.0.0.0:{port}")
        finally:
            quiet.set()
    assert code == 1
    assert "timed out" in said
