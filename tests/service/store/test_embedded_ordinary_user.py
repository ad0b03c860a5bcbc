"""The embedded PostgreSQL started by an ordinary user; tests that run as root become one in a forked process."""

import os
import pwd
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from service.store.embedded_bench import EmbeddedBench
from yard_store.embedded import DataFolderUnusable, EmbeddedPostgres, EmbeddedSettings
from yard_store.embedded_account import Account, let_account_reach, let_account_run_programs, programs_folder

# initdb wants a user that has a name.
ORDINARY_ID = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder of the ordinary user's own, from which the installed programs are reachable."""
    folder = tmp_path / "home"
    folder.mkdir()
    programs = programs_folder(18)  # imported here: the user may be unable to read the installation's Python
    if os.geteuid() == 0:
        user = Account("ordinary", ORDINARY_ID, ORDINARY_ID, frozenset({ORDINARY_ID}), switches=True)
        let_account_reach(user, folder)
        let_account_run_programs(user, programs)
        os.chown(folder, ORDINARY_ID, ORDINARY_ID)
    yield folder
    EmbeddedPostgres(EmbeddedSettings(folder / "pg")).stop("immediate")


def as_ordinary_user(action: Callable[[], None]) -> None:
    """Run `action` with that user's rights; its failure is this one's."""
    if os.geteuid() != 0:
        action()
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(ORDINARY_ID)
            os.setuid(ORDINARY_ID)
            action()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read().decode()
    os.waitpid(child, 0)
    assert failure == ""


def test_it_runs_as_that_user_and_root_continues_as_the_same(home: Path) -> None:
    settings = EmbeddedSettings(home / "pg", major_version=18)

    def start_and_stop() -> None:
        server = EmbeddedPostgres(settings)
        server.ensure_running()
        assert server.pid is not None
        assert psutil.Process(server.pid).uids().real == ORDINARY_ID
        server.stop()
        assert not server.is_alive()

    as_ordinary_user(start_and_stop)
    server = EmbeddedPostgres(settings)
    server.ensure_running()
    assert server.pid is not None
    assert psutil.Process(server.pid).uids().real == ORDINARY_ID
    server.stop()
    assert {path.stat().st_uid for path in (home / "pg", *(home / "pg").rglob("*"))} == {ORDINARY_ID}
    as_ordinary_user(start_and_stop)


def test_a_folder_that_it_may_not_write_is_refused(home: Path) -> None:
    home.chmod(0o555)

    def start() -> None:
        with pytest.raises(DataFolderUnusable, match=r"cannot be used: Permission denied .*choose another --data-dir"):
            EmbeddedPostgres(EmbeddedSettings(home / "pg")).ensure_running()

    as_ordinary_user(start)
    assert list(home.iterdir()) == []


def test_a_folder_of_another_user_is_refused(home: Path, embedded: EmbeddedBench) -> None:
    """Where these tests have no rights to make one, a system folder is another user's."""
    folder = Path("/usr/lib")
    if os.geteuid() == 0:
        embedded.server().ensure_running()
        folder = embedded.folder / "pg"
    before = folder.stat()

    def start() -> None:
        with pytest.raises(DataFolderUnusable):
            EmbeddedPostgres(EmbeddedSettings(folder)).ensure_running()

    as_ordinary_user(start)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(before.st_mode)
