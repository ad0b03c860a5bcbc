"""The settings of the embedded PostgreSQL: one file of ours, included last from `postgresql.conf`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from yard_store.embedded_account import Account, give_to_account

CONFIGURATION_FILE = "gpuyard.conf"

DURABLE_TUNING: Mapping[str, str] = MappingProxyType(
    {
        # What the ledger relies on: a commit that was answered survives a power cut.
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        # A few services on one machine: small, and no process that only waits.
        "max_connections": "100",
        "shared_buffers": "128MB",
        "max_worker_processes": "2",
        "max_parallel_workers_per_gather": "0",
        "max_parallel_maintenance_workers": "0",
        "max_logical_replication_workers": "0",
        "max_wal_senders": "2",
        "io_method": "sync",
        "jit": "off",
        "huge_pages": "off",
        # Dynamic shared memory as files of the data folder: nothing stays in /dev/shm after a kill, and containers
        # that have next to none of it work too. What queries really use comes from the preallocated part.
        "dynamic_shared_memory_type": "mmap",
        "min_dynamic_shared_memory": "8MB",
        "autovacuum": "on",
        "random_page_cost": "1.1",
        # A killed client that waits for a lock would hold its own locks until it got that one.
        "client_connection_check_interval": "2s",
    }
)

# Settings that older servers refuse to start with.
_SINCE_VERSION = {"io_method": 18}

# Not for tuning: where the server listens and logs is what the rest of this package relies on.
_FIXED: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_permissions": "0700",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "logging_collector": "on",
        "log_directory": "../log",
        # One file a weekday, overwritten a week later: rotation that needs nobody to clean up.
        "log_filename": "postgresql-%a.log",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
        "log_line_prefix": "%m [%p] ",
        "log_checkpoints": "off",
    }
)

_SETTING_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")


def write_configuration(
    database_folder: Path,
    account: Account,
    *,
    tuning: Mapping[str, str],
    major_version: int,
    socket_dir: Path,
    cluster_name: str,
) -> None:
    """Write our file and make sure that `postgresql.conf` includes it; writing the same again changes nothing.

    A running server takes the settings at its next start. Raises `ValueError` for a name that is no setting's name.
    """
    settings = {name: value for name, value in tuning.items() if _SINCE_VERSION.get(name, 0) <= major_version}
    settings |= _FIXED
    settings |= {"unix_socket_directories": f'"{socket_dir}"', "cluster_name": cluster_name}
    lines = ["# Written by gpuyard at every start; settings of your own belong below the include in postgresql.conf."]
    for name, value in settings.items():
        if _SETTING_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not the name of a PostgreSQL setting")
        lines.append(f"{name} = {_quoted(value)}")
    _replace(database_folder / CONFIGURATION_FILE, "\n".join(lines) + "\n", account)
    _include(database_folder / "postgresql.conf", account)


def _include(server_file: Path, account: Account) -> None:
    text = server_file.read_text()
    line = f"include = '{CONFIGURATION_FILE}'"
    if line not in text.splitlines():
        _replace(server_file, f"{text.rstrip()}\n\n{line}\n", account)


def _quoted(value: str) -> str:
    if "\n" in value or "\0" in value:
        raise ValueError(f"a PostgreSQL setting is one line of text, not {value!r}")
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _replace(path: Path, text: str, account: Account) -> None:
    """Atomically: a start that is killed here leaves the old file or the new one."""
    if path.exists() and path.read_text() == text:
        return
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    give_to_account(account, unfinished)
    unfinished.replace(path)
