"""What the supervisor tells: one event for everything that a person at the console would want to see."""

from dataclasses import dataclass
from enum import StrEnum


class SupervisorEventKind(StrEnum):
    STARTED = "started"
    READY = "ready"
    DIED = "died"
    NOT_STARTED = "not_started"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    LOST = "lost"
    REVIVED = "revived"
    NOT_REVIVED = "not_revived"


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """`died`, `stopped` and `killed` carry the exit code or the signal, and the last log lines; where a restart
    follows, `restart_in_seconds` says when. `lost` and the revivals concern watched processes, not children."""

    kind: SupervisorEventKind
    name: str
    pid: int | None = None
    exit_code: int | None = None
    signal_name: str | None = None
    log_lines: tuple[str, ...] = ()
    restart_in_seconds: float | None = None
    detail: str = ""

    @property
    def sentence(self) -> str:
        """One line for people, without the log lines."""
        kind = SupervisorEventKind
        what = {
            kind.STARTED: f"started (pid {self.pid})",
            kind.READY: "is ready",
            kind.DIED: f"died: {self.cause}",
            kind.NOT_STARTED: f"could not be started: {self.detail}",
            kind.STOPPING: "is asked to stop",
            kind.STOPPED: f"stopped: {self.cause}",
            kind.KILLED: "did not stop in time and was killed",
            kind.LOST: "is gone",
            kind.REVIVED: "runs again",
            kind.NOT_REVIVED: f"could not be brought back: {self.detail}",
        }[self.kind]
        again = "" if self.restart_in_seconds is None else f"; next try in {self.restart_in_seconds:.3g} s"
        return f"{self.name} {what}{again}"

    @property
    def cause(self) -> str:
        """How the process ended: `exit code 1` or `SIGKILL`."""
        if self.signal_name is not None:
            return self.signal_name
        return f"exit code {self.exit_code}" if self.exit_code is not None else self.detail
