"""A pid that is still the same process: pids are reused, a pid with its start time and boot is not."""

import sys
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GONE_STATES = ("Z", "X")


def process_identity(pid: int) -> str | None:
    """A word that this process alone ever has on this machine; None where it is gone (a zombie is).

    On Linux it is the boot and the start in clock ticks since then, which no correction of the clock moves.
    """
    if sys.platform != "linux":
        return _identity_by_clock(pid)
    try:
        # The second field is the command in parentheses and may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in _GONE_STATES:
        return None
    return f"{_BOOT_ID.read_text().strip()}:{fields[19]}"


def _identity_by_clock(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
