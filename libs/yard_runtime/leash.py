"""Runs a command that dies with its supervisor: `python leash.py PARENT_PID COMMAND [ARGUMENT…]`.

The kernel sends SIGKILL to this process when its parent ends, however that ends, and keeps doing so across exec. It is
set here, in a process of its own, because between fork and exec of a threaded parent no Python may run. Imports only
the standard library: it is started as a file, in isolated mode.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_COMMAND_NOT_FOUND = 127
_COMMAND_NOT_EXECUTABLE = 126


def main(arguments: list[str]) -> int:
    parent_pid, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        return 1  # the parent ended before the signal was asked for; nobody is left to be told
    # Python ignores these two, and an ignored signal stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606  becoming the command is the purpose
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return _COMMAND_NOT_FOUND if isinstance(error, FileNotFoundError) else _COMMAND_NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
