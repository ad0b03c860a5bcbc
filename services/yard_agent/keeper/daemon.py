"""Becoming the keeper: alone on its socket, in its own session, subreaper of all that it starts."""

import ctypes
import fcntl
import os
import sys

from connections import listen
from loop import Keeper
from task_log import TaskLog

USAGE = "usage: main.py --socket PATH --log PATH [--sweep-grace SECONDS]"
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15
STARTED, FAILED, BAD_USAGE, ALREADY_RUNNING = 0, 1, 2, 3


def main(arguments: list[str]) -> int:
    """Returns in the launching process once the keeper accepts clients, or with the reason why it does not."""
    options = {"--sweep-grace": "2.0"}
    if len(arguments) % 2:
        print(USAGE, file=sys.stderr)
        return BAD_USAGE
    options.update(zip(arguments[::2], arguments[1::2], strict=True))
    if set(options) != {"--socket", "--log", "--sweep-grace"}:
        print(USAGE, file=sys.stderr)
        return BAD_USAGE
    ready_read, ready_write = os.pipe()
    if os.fork():
        # The launcher leaves at once, so that the keeper is nobody's child to wait for or to signal.
        os.close(ready_write)
        answer = os.read(ready_read, 1)
        return {b"r": STARTED, b"l": ALREADY_RUNNING}.get(answer, FAILED)
    os.close(ready_read)
    os.setsid()
    _serve(
        os.path.abspath(options["--socket"]),
        os.path.abspath(options["--log"]),
        float(options["--sweep-grace"]),
        ready_write,
    )
    return STARTED


def _serve(socket_path: str, log_path: str, sweep_grace_seconds: float, ready_fd: int) -> None:
    os.umask(0o077)
    lock = os.open(socket_path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(ready_fd, b"l")
        os._exit(ALREADY_RUNNING)
    _become_subreaper()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    keeper = Keeper(TaskLog(log_path), sweep_grace_seconds)
    keeper.recover()
    listener = listen(socket_path)
    os.write(ready_fd, b"r")
    os.close(ready_fd)
    try:
        keeper.serve(listener)
    finally:
        os.unlink(socket_path)


def _become_subreaper() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    library.prctl(PR_SET_NAME, b"yard-keeper", 0, 0, 0)
