"""The data folder of `yard up`: what is where in it, its secrets, and the client's configuration."""

import os
import secrets
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_MARK = "# written by `yard up`; it writes this file again at every start\n"


@dataclass(frozen=True, slots=True)
class Installation:
    """Paths inside one data folder."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def agents(self) -> Path:
        return self.root / "agents"

    @property
    def lock(self) -> Path:
        """Beside what it protects, not among the files of a run, which somebody may tidy up."""
        return self.root / "up.lock"

    @property
    def client_config(self) -> Path:
        return self.root / "client.toml"

    def socket(self, name: str) -> str:
        """Where a process of this installation listens."""
        return f"unix:{self.run / name}.sock"

    def prepare(self) -> None:
        """Make the folders. The root can be passed through by PostgreSQL's own account, the rest is private."""
        self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
        for folder in (self.run, self.logs, self.agents):
            folder.mkdir(mode=0o700, exist_ok=True)

    def secret(self, name: str) -> str:
        """A random secret, made at the first start and kept in a file that only its owner reads."""
        path = self.root / "secrets" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            if text := path.read_text().strip():
                return text
        text = secrets.token_urlsafe(32)
        write_private(path, text + "\n")
        return text

    def secret_path(self, name: str) -> Path:
        return self.root / "secrets" / name

    def write_client_config(self, url: str, token: str) -> list[Path]:
        """Write the client's configuration here and, unless a person wrote one there, in the user's folder.

        Returns what was written.
        """
        text = f'{_MARK}url = "{url}"\ntoken = "{token}"\n'
        written = [self.client_config]
        write_private(self.client_config, text)
        user = user_client_config()
        if may_overwrite(user):
            user.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(user, text)
            written.append(user)
        return written


def default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("gpuyard", appauthor=False))


def user_client_config() -> Path:
    return Path(platformdirs.user_config_dir("gpuyard", appauthor=False)) / "client.toml"


def may_overwrite(path: Path) -> bool:
    """Only what is absent or our own: a person's configuration of another installation stays."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with suppress(tomllib.TOMLDecodeError):
        tomllib.loads(text)
        return text.startswith(_MARK)
    return False


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only at every moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
