"""Durations and memory sizes as people write them, to exact integers and back."""

import re

_DURATION_PART = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB|Ki|Mi|Gi|Ti)?")
_MEMORY_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}

MAX_DURATION_SECONDS = 366 * 86_400
MAX_MEMORY_BYTES = 2**50


def parse_duration_seconds(value: str | int | float) -> float:
    """Seconds from `90`, `1.5`, `"90s"`, `"1h30m"`, `"2d"`. Raises ValueError naming the accepted forms.

    The result is positive and at most a year: zero is not "unset".
    """
    if isinstance(value, bool):
        raise ValueError("expected a duration such as 90s, 1h30m or 2d")
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        text = value.strip()
        parts = _DURATION_PART.findall(text)
        if not parts or len(text) > 40 or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("expected a duration such as 90s, 1h30m or 2d")
        seconds = sum(int(number) * _MILLISECONDS[unit] for number, unit in parts) / 1000
    if not 0 < seconds <= MAX_DURATION_SECONDS:
        raise ValueError("expected a duration above zero and of at most 366 days")
    return seconds


def parse_memory_bytes(value: str | int) -> int:
    """Bytes from `1073741824`, `"1GiB"`, `"512 MB"`; always positive. Raises ValueError naming the accepted forms."""
    if isinstance(value, bool):
        raise ValueError("expected a size such as 16GiB or 512MB")
    if isinstance(value, int):
        size = value
    else:
        match = _MEMORY.fullmatch(value.strip()) if len(value) <= 40 else None
        if match is None:
            raise ValueError("expected a size such as 16GiB or 512MB")
        size = int(float(match[1]) * _MEMORY_UNITS[match[2] or "B"])
    if not 0 < size <= MAX_MEMORY_BYTES:
        raise ValueError("expected a size above zero and of at most 1024TiB")
    return size


def format_bytes(size: int) -> str:
    """The shortest binary form: 80 GiB, 512 MiB, 17 B."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def format_seconds(seconds: float) -> str:
    """A duration for people: 43s, 5m10s, 2h03m, 3d04h."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
