"""What /proc says about processes, and signals that cannot hit a process which only inherited a number."""

import os
import signal
from collections import namedtuple

MARKER = b"YARD_ALLOCATION_ID="

# `started` is field 22 of /proc/<pid>/stat, clock ticks since boot: with the pid it names one process for ever.
# `dead`: a zombie holds no memory, file or device. One whose leader ended while threads go on is not dead.
Process = namedtuple("Process", "pid parent group session started dead")


def read_process(pid: int) -> Process | None:
    """The process of this pid, or None when there is none (any more)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:  # it ended between the open and the read
        return None
    finally:
        os.close(fd)
    # The name stands in parentheses and may itself hold anything, so count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), dead)


def read_processes() -> dict[int, Process]:
    """Every process of the machine by pid. One that lives throughout the call is in it."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def allocation_of(pid: int) -> str | None:
    """The allocation id in the environment that the process was started with; None if absent or not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            text = file.readall()
    except OSError:
        return None
    for entry in text.split(b"\0"):
        if entry.startswith(MARKER):
            return os.fsdecode(entry[len(MARKER) :])
    return None


def children_by_parent(processes: dict[int, Process]) -> dict[int, list[Process]]:
    """pid -> its children, for walks down the tree."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    return children


def subtree(roots: list[Process], children: dict[int, list[Process]]) -> list[Process]:
    """The given processes and everything below them."""
    found: list[Process] = []
    queue = list(roots)
    while queue:
        process = queue.pop()
        found.append(process)
        queue.extend(children.get(process.pid, ()))
    return found


def send_signal(pid: int, started: int, signum: int) -> None:
    """Signal the process that has this pid AND this start time; nothing happens if it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # The handle is bound to one process, so a start time that is right now stays right for the signal.
        process = read_process(pid)
        if process is not None and process.started == started:
            signal.pidfd_send_signal(handle, signum)
    except OSError:  # it ended in between
        pass
    finally:
        os.close(handle)


def boot_id() -> str:
    """Changes with every boot: pids and start times of another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
