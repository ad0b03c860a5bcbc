"""Fixtures shared by all suites: one real PostgreSQL a session, one fresh database a test, a runtime on it; Kafka."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from support.kafka_cluster import KafkaCluster, start_kafka
from support.shared_kafka import SharedKafka
from yard_bus.postgres import PostgresBus
from yard_events.registry import TOPICS
from yard_runtime.clock import SystemClock, SystemIds
from yard_runtime.service import Runtime
from yard_store.embedded import EmbeddedPostgres, EmbeddedSettings
from yard_store.engine import create_engine


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    """Failing handlers are part of the tests; drawing boxes around their local variables would take seconds each."""
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, plain])
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The DSN of a server of this session's own, stopped and removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="yard-pg-"))
    server = EmbeddedPostgres(EmbeddedSettings(data_dir=folder / "pg"))
    try:
        yield server.ensure_running()
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    head, _, query = dsn.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


@pytest.fixture
async def database(postgres_server: str) -> AsyncIterator[str]:
    """The URL of a fresh, empty database."""
    name = f"t{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres_server)
    try:
        await admin.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        yield with_database(postgres_server, name)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


@pytest.fixture
async def runtime(database: str) -> AsyncIterator[Runtime]:
    """A runtime on a fresh database, with the bus migrated and all topics made."""
    engine = create_engine(database, application="tests")
    clock = SystemClock()
    ids = SystemIds(clock)
    bus = PostgresBus(engine, clock=clock, ids=ids)
    await bus.migrate()
    await bus.ensure_topics(list(TOPICS.values()))
    yield Runtime(engine=engine, bus=bus, clock=clock, ids=ids, instance="test", internal_token="internal")
    await engine.dispose()


@pytest.fixture
async def second_runtime(runtime: Runtime, database: str) -> AsyncIterator[Runtime]:
    """Another process on the same database, as far as PostgreSQL can tell: its own pool, bus and name."""
    engine = create_engine(database, application="tests-2")
    bus = PostgresBus(engine, clock=runtime.clock, ids=runtime.ids)
    await bus.load_topics()
    yield replace(runtime, engine=engine, bus=bus, instance="test-2")
    await engine.dispose()


@pytest.fixture
def loop_deadline() -> asyncio.Timeout:
    """A bound on tests that await events, so that a missing event fails instead of hanging."""
    return asyncio.timeout(20)


def pytest_configure(config: pytest.Config) -> None:
    """Where tests ask for the Kafka that they share."""
    config.pluginmanager.register(SharedKafka(config), "shared-kafka")


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> str:
    """Bootstrap servers of a Kafka that all tests of the run share: use topics, groups and transactional ids of your
    own, and break nothing."""
    shared = request.config.pluginmanager.get_plugin("shared-kafka")
    assert isinstance(shared, SharedKafka)
    return shared.bootstrap()


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., KafkaCluster]]:
    """`start_kafka`, for tests that break brokers; what they start is closed at their end."""
    with ExitStack() as started:

        def start(*arguments: Any, **named: Any) -> KafkaCluster:
            return started.enter_context(start_kafka(*arguments, **named))

        yield start
