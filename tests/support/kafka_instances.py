"""Instances of the suites' service as processes of their own, and topics of a test's own on the shared broker."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.kafka_harness import admin
from support.kafka_service import QUICK, make_topics
from yard_bus.kafka_options import KafkaOptions

TESTS = Path(__file__).parents[1]


@asynccontextmanager
async def own_topics(bootstrap: str) -> AsyncIterator[KafkaOptions]:
    options = KafkaOptions(bootstrap, prefix=f"p{secrets.token_hex(5)}.", **QUICK)
    await make_topics(options)
    try:
        yield options
    finally:
        async with admin(options) as client:
            await client.delete_topics([name for name in await client.list_topics() if name.startswith(options.prefix)])


class Process:
    """One instance in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def until_says(self, word: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while (line := await self.process.stdout.readline()).decode().strip() != word:
                assert line, "it ended"

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def instance(
    dsn: str, options: KafkaOptions, name: str, *more: str, module: str = "support.kafka_service_process"
) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", module, dsn, options.bootstrap, options.prefix, name, *more),
        cwd=TESTS,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
