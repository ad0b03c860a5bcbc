"""The command line as people run it: a process of its own."""

import subprocess
import sys
from dataclasses import dataclass

COMMAND = (sys.executable, "-m", "yard_client.cli.main")


@dataclass
class Yard:
    """Runs `yard` with a home folder and environment of the test's own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            timeout=30,
            env={**self.environment, **environment},
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **environment},
        )
