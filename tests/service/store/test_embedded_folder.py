"""The data folder of the embedded PostgreSQL: what is refused and how it says so, odd paths, ownership."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from service.store.embedded_bench import EmbeddedBench, query, server_user
from yard_store.embedded import DataFolderUnusable, DataFolderVersion
from yard_store.embedded_account import Account, let_account_reach, let_account_run_programs
from yard_store.postmaster import find_postmaster


def test_a_folder_of_another_major_version_is_refused_with_instructions(embedded: EmbeddedBench) -> None:
    server = embedded.server()
    server.ensure_running()
    server.stop()
    version = embedded.folder / "pg" / "pgdata" / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(DataFolderVersion) as error:
        server.ensure_running()
    text = str(error.value)
    assert "was written by PostgreSQL 16; this gpuyard runs PostgreSQL 18" in text
    assert "pg_dump" in text
    assert "pg_restore" in text
    assert "--data-dir" in text
    assert not server.is_alive()
    version.write_text("18\n")
    server.ensure_running()


def a_foreign_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()


def a_plain_file(folder: Path) -> None:
    folder.write_text("not a folder")


def a_foreign_database(folder: Path) -> None:
    folder.mkdir()
    (folder / "PG_VERSION").write_text("18\n")


def an_old_foreign_database(folder: Path) -> None:
    folder.mkdir()
    (folder / "PG_VERSION").write_text("13\n")


def a_database_without_a_version(folder: Path) -> None:
    (folder / "pgdata").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (a_foreign_file, DataFolderUnusable, "is not empty and holds no gpuyard database .*'thesis.tex'"),
        (a_plain_file, DataFolderUnusable, "cannot be used: Not a directory"),
        (a_foreign_database, DataFolderUnusable, "gpuyard did not make"),
        (an_old_foreign_database, DataFolderVersion, "written by PostgreSQL 13"),
        (a_database_without_a_version, DataFolderUnusable, "has no PG_VERSION"),
    ],
)
def test_a_folder_with_something_else_is_refused_and_left_as_it_was(
    embedded: EmbeddedBench, make: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    folder = embedded.folder / "pg"
    make(folder)
    before = contents(folder)
    with pytest.raises(error, match=message) as raised:
        embedded.server().ensure_running()
    assert str(folder) in str(raised.value)
    if make is not a_database_without_a_version:
        assert contents(folder) == before


def contents(folder: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_mode) for path in (folder, *sorted(folder.rglob("*")))]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("d" * 110, id="too-long-for-a-socket"),
        pytest.param("a,b", id="comma"),
        pytest.param('it\'s "quoted" \\ #1 & more?', id="quotes"),
        pytest.param("with space/é 100%", id="space-and-percent"),
    ],
)
async def test_a_path_that_is_hard_for_sockets_or_for_quoting(embedded: EmbeddedBench, name: str) -> None:
    server = embedded.server(name)
    runtime_dirs = set(Path(tempfile.gettempdir()).glob("gpuyard-*"))
    dsn = server.ensure_running()
    assert await query(dsn, "SELECT current_setting('data_directory')") == str(embedded.folder / name / "pgdata")
    for made in set(Path(tempfile.gettempdir()).glob("gpuyard-*")) - runtime_dirs:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert made.stat().st_uid == server_user().pw_uid
    server.stop()
    assert set(Path(tempfile.gettempdir()).glob("gpuyard-*")) == runtime_dirs


def test_somebody_elses_folder_in_the_place_of_the_socket_is_refused(embedded: EmbeddedBench) -> None:
    server = embedded.server("d" * 110)
    server.ensure_running()
    server.stop()
    socket_dir = server._folder._runtime_dir()  # its name is nobody's business but a squatter's
    socket_dir.mkdir()
    socket_dir.chmod(0o777)
    try:
        with pytest.raises(DataFolderUnusable, match="in the way of the database's socket"):
            server.ensure_running()
    finally:
        socket_dir.rmdir()


async def test_a_moved_folder_keeps_its_data(embedded: EmbeddedBench) -> None:
    server = embedded.server()
    await query(server.ensure_running(), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    (embedded.folder / "pg").rename(embedded.folder / "moved")
    assert await query(embedded.server("moved").ensure_running(), "SELECT answer FROM kept") == 42


async def test_a_copy_that_was_restored_by_this_user_is_usable(embedded: EmbeddedBench) -> None:
    """Restored by root it belongs to root; by anyone it may have lost its mode."""
    server = embedded.server()
    await query(server.ensure_running(), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    shutil.copytree(embedded.folder / "pg", embedded.folder / "restored")
    (embedded.folder / "restored" / "pgdata").chmod(0o755)
    assert await query(embedded.server("restored").ensure_running(), "SELECT answer FROM kept") == 42


@pytest.mark.parametrize(
    ("mode", "expected"), [(0o700, 0o701), (0o750, 0o751), (0o711, 0o711), (0o755, 0o755), (0o770, 0o771)]
)
def test_only_the_missing_right_to_traverse_is_added(tmp_path: Path, mode: int, expected: int) -> None:
    stranger = Account("stranger", uid=54321, gid=54321, groups=frozenset({54321}), switches=True)
    above = tmp_path / "above"
    target = above / "target"
    target.mkdir(parents=True)
    target.chmod(0o700)
    above.chmod(mode)
    let_account_reach(stranger, target)
    assert stat.S_IMODE(above.stat().st_mode) == expected
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_a_group_that_the_account_is_in_decides_before_everybody(tmp_path: Path) -> None:
    member = Account("member", uid=54321, gid=os.getegid(), groups=frozenset({tmp_path.stat().st_gid}), switches=True)
    above = tmp_path / "above"
    (above / "target").mkdir(parents=True)
    above.chmod(0o705)
    let_account_reach(member, above / "target")
    assert stat.S_IMODE(above.stat().st_mode) == 0o715


def test_programs_installed_under_a_strict_umask_become_readable(tmp_path: Path) -> None:
    stranger = Account("stranger", uid=54321, gid=54321, groups=frozenset({54321}), switches=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "postgres").touch(0o700)
    (tmp_path / "share").mkdir(0o700)
    (tmp_path / "share" / "timezone").touch(0o600)
    (tmp_path / "share" / "link").symlink_to("/nonexistent")
    let_account_run_programs(stranger, tmp_path / "bin")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("bin/postgres", "share/timezone")}
    assert modes == {"bin/postgres": 0o705, "share/timezone": 0o604}
    assert stat.S_IMODE((tmp_path / "share").stat().st_mode) == 0o705


@pytest.mark.parametrize(
    ("name", "folder", "found"),
    [("postgres", "mine", True), ("postgres", "another", False), ("python3", "mine", False)],
)
def test_a_lock_file_counts_only_for_a_postgres_of_this_folder(
    tmp_path: Path, name: str, folder: str, found: bool
) -> None:
    (tmp_path / "mine").mkdir()
    waits = "import signal; print('up', flush=True); signal.pause()"
    process = subprocess.Popen(
        [name, "-c", waits, "-D", str(tmp_path / folder)], executable=sys.executable, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (tmp_path / "mine" / "postmaster.pid").write_text(f"{process.pid}\n")
        assert (find_postmaster(tmp_path / "mine") is not None) is found
    finally:
        process.kill()
        process.communicate()
    assert find_postmaster(tmp_path / "mine") is None


@pytest.mark.parametrize("content", ["", "\n", "many\n", "-17\n", "4194303\n"])
def test_a_damaged_or_dead_lock_file_is_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "postmaster.pid").write_text(content)
    assert find_postmaster(tmp_path) is None
