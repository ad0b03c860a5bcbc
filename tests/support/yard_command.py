"""The command line as people run it: in a process of its own, or, where only its answer matters, in this one."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from unittest.mock import patch

from yard_client.cli.main import run

COMMAND = (sys.executable, "-m", "yard_client.cli.main")


@dataclass
class Yard:
    """Runs `yard` with a home folder and environment of the test's own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        """One command line in this process: the same code without the 0.3 s that starting Python takes."""
        out, err = io.BytesIO(), io.BytesIO()
        with (
            patch.dict(os.environ, {**self.environment, **environment}, clear=True),
            patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")),
            patch.object(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True)),
            patch.object(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True)),
            patch.object(sys, "excepthook", sys.excepthook),
        ):
            code = run(list(arguments))
            return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def process(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        """One command line in a process of its own, to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            env={**self.environment, **environment},
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process that the test talks to while it runs."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **environment},
        )
