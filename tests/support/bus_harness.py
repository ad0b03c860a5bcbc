"""What the contract suite of the bus needs beyond `Bus`: two instances, and ways to break things under them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, quote, urlsplit

import sqlalchemy as sa

from support.contract import until
from support.severing_proxy import SeveringProxy
from yard_bus.postgres import PostgresBus
from yard_events.registry import Topic
from yard_runtime.service import Runtime
from yard_store.engine import create_engine


class BusHarness(Protocol):
    """One implementation under test. `first` and `second` are two processes as far as bus and database can tell."""

    first: Runtime
    second: Runtime

    async def ensure_topics(self, topics: list[Topic]) -> None:
        """On both instances, the second only learning what is there."""
        ...

    async def end_sessions(self) -> None:
        """Break the connections of all sessions, members and readers."""
        ...

    async def end_active_member(self) -> None:
        """Break the connection of the one member of a group that is active; standbys keep theirs."""
        ...

    async def flush(self) -> None:
        """Return when what units of work of the suites' service emitted can be read."""
        ...

    async def drop_before(self, topic: str, offset: int) -> None:
        """Retention: partition 0 of the topic now begins at `offset`."""
        ...

    async def delete_and_make_again(self, topic: Topic) -> None: ...

    def losing_commits(self) -> AbstractAsyncContextManager[tuple[Runtime, SeveringProxy]]:
        """A third instance whose database connections can be cut at a COMMIT."""
        ...


class PostgresHarness:
    """The embedded bus."""

    def __init__(self, first: Runtime, second: Runtime, folder: Path) -> None:
        self.first = first
        self.second = second
        self._folder = folder

    async def ensure_topics(self, topics: list[Topic]) -> None:
        await self.first.bus.ensure_topics(topics)
        assert isinstance(self.second.bus, PostgresBus)
        await self.second.bus.load_topics()

    async def end_sessions(self) -> None:
        await self._execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'yard_bus listener' AND datname = current_database()"
        )

    async def end_active_member(self) -> None:
        ended = await self._execute(
            "SELECT pg_terminate_backend(l.pid, 5000) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE l.locktype = 'advisory' AND l.granted AND a.application_name = 'yard_bus listener' "
            "AND a.datname = current_database()"
        )
        assert ended == 1, "there must be exactly one active member"

    async def flush(self) -> None:
        """The log is where they were appended."""

    async def until_appenders_wait(self, count: int) -> None:
        async def waiting() -> bool:
            async with self.first.engine.connect() as connection:
                found = await connection.scalar(
                    sa.text(
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                        "AND query LIKE '%yard_bus.append%' AND datname = current_database()"
                    )
                )
            return found == count

        await until(waiting, f"{count} appenders wait")

    async def drop_before(self, topic: str, offset: int) -> None:
        await self._execute(
            "DELETE FROM yard_bus.log USING yard_bus.topic t "
            "WHERE t.topic_id = log.topic_id AND t.name = :topic AND log_offset < :offset",
            topic=topic,
            offset=offset,
        )
        await self._execute(
            "UPDATE yard_bus.partition p SET first_offset = :offset FROM yard_bus.topic t "
            "WHERE t.topic_id = p.topic_id AND t.name = :topic AND p.partition = 0",
            topic=topic,
            offset=offset,
        )

    async def compact_away(self, topic: str, offset: int) -> None:
        gone = await self._execute(
            "DELETE FROM yard_bus.log USING yard_bus.topic t "
            "WHERE t.topic_id = log.topic_id AND t.name = :topic AND log_offset = :offset",
            topic=topic,
            offset=offset,
        )
        assert gone == 1

    async def delete_and_make_again(self, topic: Topic) -> None:
        await self._execute(
            "DELETE FROM yard_bus.log USING yard_bus.topic t WHERE t.topic_id = log.topic_id AND t.name = :topic",
            topic=topic.name,
        )
        await self._execute("DELETE FROM yard_bus.topic WHERE name = :topic", topic=topic.name)
        await self.ensure_topics([topic])

    def losing_commits(self) -> AbstractAsyncContextManager[tuple[Runtime, SeveringProxy]]:
        return losing_commits(self.first, self._folder)

    async def _execute(self, statement: str, **values: object) -> int:
        async with self.first.engine.begin() as connection:
            return (await connection.execute(sa.text(statement), values)).rowcount


@asynccontextmanager
async def losing_commits(first: Runtime, folder: Path) -> AsyncIterator[tuple[Runtime, SeveringProxy]]:
    """An instance like `first` whose database connections go through a proxy with its socket in `folder`."""
    url = first.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    parts = urlsplit(url)
    [socket_folder] = parse_qs(parts.query)["host"]
    behind = parts._replace(query=f"host={quote(str(folder))}").geturl()
    upstream = Path(socket_folder) / ".s.PGSQL.5432"
    async with SeveringProxy(folder, upstream) as proxy:
        engine = create_engine(behind, application="tests-3")
        try:
            yield replace(first, engine=engine, instance="test-3"), proxy
        finally:
            await engine.dispose()
