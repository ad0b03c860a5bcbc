"""The step from the keeper to a task's own program: fork, wait for leave, become a session, exec."""

import errno
import os
import signal
from collections import namedtuple
from contextlib import suppress

TASK_UMASK = 0o022

# `release_fd`: one byte lets the child go on, closing it without makes the child end without exec.
# `failure_fd`: closes empty at a successful exec, otherwise says `reason detail`.
Child = namedtuple("Child", "pid release_fd failure_fd")


def fork_child(argv: list[str], env: dict[str, str], workdir: str | None, output_path: str) -> Child:
    """Fork a child that waits. Raises OSError when the machine gives no process or pipe."""
    release_read, release_write = os.pipe()
    try:
        failure_read, failure_write = os.pipe()
    except OSError:
        os.close(release_read)
        os.close(release_write)
        raise
    # Blocked until the child has default handlers: a signal that came in between would run the keeper's.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become_task(release_read, failure_write, argv, env, workdir, output_path)
    except OSError:
        os.close(release_write)
        os.close(failure_read)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(release_read)
        os.close(failure_write)
    os.set_blocking(failure_read, False)
    return Child(pid, release_write, failure_read)


def _become_task(
    release_fd: int, failure_fd: int, argv: list[str], env: dict[str, str], workdir: str | None, output_path: str
) -> None:
    """Runs in the child and never returns."""
    failure = "start_failed the child ended before exec"
    try:
        os.setsid()
        _close_all_but(release_fd, failure_fd)
        _reset_signals()
        if os.read(release_fd, 1) != b"1":
            failure = ""
            return
        os.close(release_fd)
        failure = _run(argv, env, workdir, output_path)
    except (OSError, ValueError, MemoryError) as error:
        failure = f"start_failed {error}"
    finally:
        if failure:
            os.write(failure_fd, os.fsencode(failure)[:4000])
        os._exit(127)


def _close_all_but(*kept: int) -> None:
    """Every other descriptor is the keeper's. Done first, so that no child keeps a brother's pipe open."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with suppress(OSError):  # the listing's own descriptor is closed by now
                os.close(fd)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run(argv: list[str], env: dict[str, str], workdir: str | None, output_path: str) -> str:
    """Exec, or say why not as `reason detail`."""
    os.umask(TASK_UMASK)
    try:
        null = os.open("/dev/null", os.O_RDONLY)
        output = os.open(output_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return f"start_failed output file {error.filename}: {error.strerror}"
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    try:
        os.chdir(workdir or "/")
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return f"{'workdir_missing' if absent else 'start_failed'} {workdir}: {error.strerror}"
    return _exec(argv, env)


def _exec(argv: list[str], env: dict[str, str]) -> str:
    """Search as a shell does; the most telling error of the search is the one reported."""
    name = argv[0]
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(folder or ".", name) for folder in env.get("PATH", os.defpath).split(":")]
    verdict = f"command_not_found {name}"
    for path in candidates:
        try:
            os.execve(path, argv, env)  # noqa: S606  no shell: the words go to the program as they are
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(path):
                continue
            if error.errno == errno.ENOENT:
                return f"command_not_executable {path}: its interpreter or link target does not exist"
            if error.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM, errno.ENOTDIR, errno.EISDIR):
                verdict = f"command_not_executable {path}: {error.strerror}"
                if error.errno == errno.EACCES:  # as in a shell, a later folder may hold one that can run
                    continue
                return verdict
            return f"start_failed {path}: {error.strerror}"
    return verdict
