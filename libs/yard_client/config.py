"""Where the client finds its URL and token: environment over the file of YARD_CONFIG or the user's config folder."""

import json
import os
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from yard_client.errors import NotConfigured

URL_VARIABLE = "YARD_URL"
TOKEN_VARIABLE = "YARD_TOKEN"  # noqa: S105
PATH_VARIABLE = "YARD_CONFIG"

_ADVICE = (
    "Run `make up` to start gpuyard on this machine (it writes the file), "
    f"or set {URL_VARIABLE} and {TOKEN_VARIABLE}, or point {PATH_VARIABLE} at a client.toml."
)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """`*_source` says where a value came from; `warnings` are sentences for people."""

    url: str
    token: str
    path: Path
    url_source: str
    token_source: str
    warnings: tuple[str, ...] = ()

    @property
    def masked_token(self) -> str:
        return f"{self.token[:4]}…" if len(self.token) >= 16 else "…"


def default_path(environment: Mapping[str, str]) -> Path:
    """The config file that counts: YARD_CONFIG, else `gpuyard/client.toml` in the user's config folder."""
    named = environment.get(PATH_VARIABLE)
    if named:
        return Path(named).expanduser()
    import platformdirs  # most runs name the file or have it; the import is only for this line

    return platformdirs.user_config_path("gpuyard") / "client.toml"


def load(environment: Mapping[str, str]) -> ClientConfig:
    """The URL and token to use. Raises NotConfigured with what to do."""
    path = default_path(environment)
    url, token = environment.get(URL_VARIABLE, "").strip(), environment.get(TOKEN_VARIABLE, "").strip()
    url_source, token_source = f"environment {URL_VARIABLE}", f"environment {TOKEN_VARIABLE}"
    warnings: tuple[str, ...] = ()
    if not (url and token):
        content = _read(path)
        if not url:
            url, url_source = _text(content, "url", path), str(path)
        if not token:
            token, token_source = _text(content, "token", path), str(path)
            warnings = _permission_warnings(path)
    return ClientConfig(_checked_url(url, url_source), _checked_token(token, token_source), path, url_source,
                        token_source, warnings)  # fmt: skip


def write(path: Path, *, url: str, token: str) -> None:
    """Writes the file so that only its owner can read it, never half. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # A JSON string of printable characters is a TOML basic string.
    text = f"url = {json.dumps(url)}\ntoken = {json.dumps(token)}\n"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotConfigured(f"no configuration: {path} does not exist. {_ADVICE}") from None
    except OSError as error:
        raise NotConfigured(f"cannot read {path}: {error.strerror}. {_ADVICE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NotConfigured(f"{path} is not valid TOML: {error}") from None


def _text(content: Mapping[str, Any], key: str, path: Path) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not value.strip():
        raise NotConfigured(f'{path} has no `{key}`; it needs a line {key} = "…". {_ADVICE}')
    return value.strip()


def _checked_url(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable():
        raise NotConfigured(f"the URL {url!r} ({source}) is not of the form http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def _checked_token(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise NotConfigured(f"the token ({source}) has characters that no token has; was it copied whole?")
    return token


def _permission_warnings(path: Path) -> tuple[str, ...]:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return ()
    if os.name == "posix" and mode & 0o077:
        return (f"{path} holds a token and others may read it (mode {mode:04o}); run: chmod 600 {path}",)
    return ()
