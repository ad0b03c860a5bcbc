"""What people see on stderr while a job waits for its turn: a live line on a terminal, plain sentences elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from yard_client.cli.outcome import has_ended, sentence
from yard_client.cli.output import notice, printable

if TYPE_CHECKING:
    from rich.status import Status

    from yard_client.models import Job

_WAITING_STATES = frozenset({"submitted", "queued", "admitted", "starting", "lost"})


class Waiting:
    """Shows why a job waits. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        self._status: Status | None = None
        self._said = ""

    def on_job(self, job: Job) -> None:
        waits = job["state"] in _WAITING_STATES
        if not self._live:
            text = sentence(job)
            if waits and job["reason"] and text != self._said and not self._quiet:
                notice(f"{job['id']} is {text}")
                self._said = text
            return
        if not waits or has_ended(job):
            self.stop()
        else:
            self._show(f"{job['name']} is {sentence(job)}")

    def on_notice(self, text: str) -> None:
        self.stop()
        if not self._quiet:
            notice(text)

    def stop(self) -> None:
        """Clears the live line, as before the job's own bytes."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, text: str) -> None:
        from rich.console import Console
        from rich.status import Status
        from rich.text import Text

        shown = Text(printable(text))
        if self._status is None:
            self._status = Status(shown, console=Console(stderr=True))
            self._status.start()
        else:
            self._status.update(shown)
