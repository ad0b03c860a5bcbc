"""A real `yard up` in a folder of its own, and the `yard` command line pointed at it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

BIN = Path(sys.executable).parent
READY_SECONDS = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something that another process does and that sends no event; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    tick = threading.Event()
    while time.monotonic() < deadline:
        if found := condition():
            return found
        tick.wait(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


class Installation:
    """One data folder with at most one running `yard up`."""

    def __init__(self, root: Path, *up_arguments: str) -> None:
        self.root = root
        self.data = root / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = up_arguments
        self._process: subprocess.Popen[str] | None = None
        self.console: list[str] = []
        self._ready = threading.Event()
        self.env = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(root),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_DATA_HOME": str(root / "share"),
            "LANG": "C.UTF-8",
            "YARD_CONFIG": str(self.data / "client.toml"),
        }

    # --- the installation --------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start and wait until it says that it is ready."""
        self._ready.clear()
        self._process = subprocess.Popen(
            [
                str(BIN / "yard"),
                "up",
                "--data-dir",
                str(self.data),
                "--http",
                f"127.0.0.1:{self.port}",
                *self._arguments,
            ],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        if not self._ready.wait(READY_SECONDS):
            raise AssertionError("not ready:\n" + "\n".join(self.console) + self.logs())

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.console.append(line.rstrip())
            if "gpuyard is ready" in line:
                self._ready.set()

    @property
    def supervisor(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit code."""
        self.supervisor.send_signal(signal.SIGINT)
        return self.supervisor.wait(40)

    def pids(self) -> dict[str, int]:
        """The supervised processes by name."""
        found = {}
        for path in (self.data / "run").glob("*.pid"):
            try:
                found[path.stem] = json.loads(path.read_text())["pid"]
            except FileNotFoundError:
                continue  # it ended meanwhile
        return found

    def postmaster_pid(self) -> int | None:
        try:
            return int((self.data / "postgres" / "pgdata" / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return None

    def keeper_pids(self) -> list[int]:
        marker = str(self.data / "agents")
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any("keeper" in part for part in process.info["cmdline"] or ())
            and any(part.startswith(marker) for part in process.info["cmdline"] or ())
        ]

    def kill_everything(self, *, keepers: bool) -> None:
        """kill -9 of the supervisor, all services and PostgreSQL at once, and of the keepers if asked."""
        victims = [self.supervisor.pid, *self.pids().values()]
        if (postmaster := self.postmaster_pid()) is not None:
            victims.append(postmaster)
        if keepers:
            victims += self.keeper_pids()
        for pid in victims:
            kill(pid)
        self.supervisor.wait(10)

    def down(self) -> None:
        subprocess.run(
            [str(BIN / "yard"), "down", "--data-dir", str(self.data), "--grace-seconds", "0"],
            env=self.env,
            check=False,
            capture_output=True,
            timeout=90,
        )

    def logs(self) -> str:
        """The ends of the services' logs, for the message of a failure."""
        return "".join(
            f"\n--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted((self.data / "logs").glob("*.log"))
        )

    # --- the command line --------------------------------------------------------------------------------------------

    def yard(
        self, *arguments: str, check: bool = True, input: str | None = None, timeout: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [str(BIN / "yard"), *arguments],
            env=self.env,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"yard {' '.join(arguments)} → {done.returncode}\n{done.stdout}\n{done.stderr}{self.logs()}"
            )
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.yard(arguments[0], "-o", "json", *arguments[1:]).stdout)

    def token(self) -> str:
        return (self.data / "secrets" / "admin.token").read_text().strip()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.token()}"}, timeout=30)

    def marked_processes(self) -> list[int]:
        """Processes of tasks of this installation: their environment names an output of it, or its jobs."""
        found = []
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except (psutil.Error, OSError):
                continue
            if env.get("HOME") == str(self.root) and "YARD_ALLOCATION_ID" in env:
                found.append(process.pid)
        return found


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def installation(*up_arguments: str) -> Iterator[Installation]:
    """A fresh one; everything of it is stopped and removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="yard-e2e-"))
    root.chmod(0o711)
    made = Installation(root, *up_arguments)
    try:
        yield made
    finally:
        if made._process is not None and made._process.poll() is None:
            made._process.terminate()
            try:
                made._process.wait(30)
            except subprocess.TimeoutExpired:
                made._process.kill()
        made.down()
        shutil.rmtree(root, ignore_errors=True)
