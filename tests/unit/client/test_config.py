"""Where URL and token come from, and what is said when they do not."""

from pathlib import Path

import pytest

from yard_client import config
from yard_client.errors import NotConfigured

FILE = 'url = "http://file:1/"\ntoken = "file-token-0123456789"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("environment", "url", "token"),
    [
        ({}, "http://file:1", "file-token-0123456789"),
        ({"YARD_URL": "https://env"}, "https://env", "file-token-0123456789"),
        ({"YARD_TOKEN": " env-token\n"}, "http://file:1", "env-token"),
        ({"YARD_URL": "http://[::1]:8080", "YARD_TOKEN": "t"}, "http://[::1]:8080", "t"),
    ],
)
def test_the_environment_goes_before_the_file(file: Path, environment: dict[str, str], url: str, token: str) -> None:
    loaded = config.load({"YARD_CONFIG": str(file), **environment})
    assert (loaded.url, loaded.token, loaded.warnings) == (url, token, ())
    for name, source in (("YARD_URL", loaded.url_source), ("YARD_TOKEN", loaded.token_source)):
        assert source == (f"environment {name}" if name in environment else str(file))


def test_a_complete_environment_needs_no_file(tmp_path: Path) -> None:
    loaded = config.load({"YARD_CONFIG": str(tmp_path / "none"), "YARD_URL": "http://h", "YARD_TOKEN": "t"})
    assert (loaded.url, loaded.token) == ("http://h", "t")


def test_the_users_folder_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = config.default_path({})
    assert path.parts[-2:] == ("gpuyard", "client.toml")
    assert path.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist. Run `make up`"),
        (b"url = ", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b'token = "t"', "has no `url`"),
        (b'url = "http://h"', "has no `token`"),
        (b'url = 8080\ntoken = "t"', "has no `url`"),
        (b'url = "http://h"\ntoken = " "', "has no `token`"),
        (b'url = "h:8080"\ntoken = "t"', "is not of the form http://HOST:PORT"),
        (b'url = "file:///etc/passwd"\ntoken = "t"', "is not of the form http://HOST:PORT"),
        (b'url = "http://h:99999"\ntoken = "t"', "is not of the form http://HOST:PORT"),
        (b'url = "http://[::1"\ntoken = "t"', "is not of the form http://HOST:PORT"),
        (b'url = "http://h"\ntoken = "two words"', "was it copied whole?"),
        (b'url = "http://h"\ntoken = "a\\nb"', "was it copied whole?"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "client.toml"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(NotConfigured, match=said.replace("?", r"\?")) as error:
        config.load({"YARD_CONFIG": str(path)})
    assert "two words" not in str(error.value), "a token is never shown"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="cannot read"):
        config.load({"YARD_CONFIG": str(tmp_path)})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_token_that_others_may_read_is_warned_about(file: Path, mode: int, warned: bool) -> None:
    file.chmod(mode)
    assert bool(config.load({"YARD_CONFIG": str(file)}).warnings) == warned
    assert config.load({"YARD_CONFIG": str(file), "YARD_TOKEN": "t"}).warnings == ()


def test_what_is_written_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "client.toml"
    for token in ("first-token-012345", 'quo"te\\d'):
        config.write(path, url="http://127.0.0.1:1", token=token)
        loaded = config.load({"YARD_CONFIG": str(path)})
        assert (loaded.url, loaded.token) == ("http://127.0.0.1:1", token)
        assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["client.toml"]


@pytest.mark.parametrize(("token", "masked"), [("0123456789abcdef", "0123…"), ("short", "…")])
def test_a_token_is_masked(token: str, masked: str) -> None:
    loaded = config.ClientConfig("http://h", token, Path("x"), "", "")
    assert loaded.masked_token == masked
