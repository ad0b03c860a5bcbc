"""One task as the keeper knows it, and how that stands in the log."""

STARTING = "starting"
RUNNING = "running"
EXITED = "exited"


class Task:
    """`members` are the living processes of the task by pid, with their start times; the root is among them."""

    __slots__ = (
        "allocation_id",
        "blocked",
        "boot",
        "detail",
        "emptied",
        "empty_scans",
        "exit_code",
        "failure_fd",
        "kill_at",
        "members",
        "orphaned",
        "pid",
        "reason",
        "scan_at",
        "scan_delay",
        "session_ended",
        "signal",
        "started",
        "state",
        "terminated",
    )

    def __init__(self, allocation_id: str, boot: str) -> None:
        self.allocation_id = allocation_id
        self.boot = boot
        self.state = STARTING
        self.pid: int | None = None
        self.started: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.reason: str | None = None
        self.detail: str | None = None
        self.emptied = False
        # its keeper died: its processes are nobody's children now
        self.orphaned = False
        self.failure_fd = -1
        self.members: dict[int, int] = {}
        # got their SIGTERM
        self.terminated: set[int] = set()
        # a stray process may be of this task
        self.blocked = False
        # the number of the root's session may have been given to another
        self.session_ended = False
        self.empty_scans = 0
        # monotonic seconds: SIGKILL is due; the next look is due
        self.kill_at: float | None = None
        self.scan_at: float | None = None
        self.scan_delay = 0.0

    @property
    def over(self) -> bool:
        return self.state == EXITED and self.emptied

    def status(self) -> dict:
        """As clients see it."""
        return {
            "allocation_id": self.allocation_id,
            "state": self.state,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "detail": self.detail,
            "emptied": self.emptied,
        }

    def intent_record(self) -> dict:
        return {"r": "intent", "id": self.allocation_id, "boot": self.boot}

    def pid_record(self) -> dict:
        return {"r": "pid", "id": self.allocation_id, "pid": self.pid, "started": self.started}

    def exit_record(self) -> dict:
        return {
            "r": "exit",
            "id": self.allocation_id,
            "code": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "detail": self.detail,
        }

    def emptied_record(self) -> dict:
        return {"r": "emptied", "id": self.allocation_id}

    def records(self) -> list[dict]:
        """What the log must hold for this task."""
        records = [self.intent_record()]
        if self.pid is not None:
            records.append(self.pid_record())
        if self.state == EXITED:
            records.append(self.exit_record())
        if self.emptied:
            records.append(self.emptied_record())
        return records


def replay(records: list[dict]) -> dict[str, Task]:
    """The tasks of a predecessor's log, those without an end included."""
    tasks: dict[str, Task] = {}
    for record in records:
        kind, allocation_id = record.get("r"), record["id"]
        if kind == "intent":
            tasks[allocation_id] = task = Task(allocation_id, record.get("boot", ""))
            task.orphaned = True
            continue
        task = tasks.get(allocation_id)
        if task is None:
            continue
        if kind == "pid":
            task.pid, task.started, task.state = record["pid"], record["started"], RUNNING
        elif kind == "exit":
            task.state = EXITED
            task.exit_code, task.signal = record.get("code"), record.get("signal")
            task.reason, task.detail = record.get("reason"), record.get("detail")
        elif kind == "emptied":
            task.emptied = True
        elif kind == "forget":
            del tasks[allocation_id]
    return tasks
