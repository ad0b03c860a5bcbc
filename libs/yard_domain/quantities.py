"""Durations and memory sizes as people write them, to exact integers and back."""

import re

_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB|Ki|Mi|Gi|Ti)?")
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
MIN_DURATION_SECONDS = 0.001
MAX_MEMORY_BYTES = 2**50
MIN_CPUS = 0.001
MAX_CPUS = 4096

_DURATION_FORMS = "expected a duration such as 90s, 1h30m or 2d"
_MEMORY_FORMS = "expected a size such as 16GiB or 512MB"


def parse_duration_seconds(value: object) -> float:
    """Seconds from `90`, `1.5`, `"90s"`, `"1h30m"`, `"2d"`. Raises ValueError naming the accepted forms.

    The result is from a millisecond to a year: zero is not "unset".
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(_DURATION_FORMS)
    if isinstance(value, str):
        text = value.strip()
        parts = _DURATION_PART.findall(text) if len(text) <= 40 else []
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(_DURATION_FORMS)
        value = sum(int(number) * _MILLISECONDS[unit] for number, unit in parts) / 1000
    # Compared before it is converted: an integer may be too large for a float.
    if not MIN_DURATION_SECONDS <= value <= MAX_DURATION_SECONDS:
        raise ValueError("expected a duration of at least 1ms and at most 366 days")
    return float(value)


def parse_memory_bytes(value: object) -> int:
    """Bytes from `1073741824`, `"1GiB"`, `"512 MB"`; always positive. Raises ValueError naming the accepted forms."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(_MEMORY_FORMS)
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value.strip()) if len(value) <= 40 else None
        if match is None:
            raise ValueError(_MEMORY_FORMS)
        value = int(float(match[1]) * _MEMORY_UNITS[match[2] or "B"])
    if not 0 < value <= MAX_MEMORY_BYTES:
        raise ValueError("expected a size above zero and of at most 1024TiB")
    return value


def parse_cpus(value: object) -> float:
    """CPU cores as a number, fractions allowed. Raises ValueError naming the range; true is not one core."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_CPUS <= value <= MAX_CPUS:
        raise ValueError(f"expected a number of CPU cores from {MIN_CPUS} to {MAX_CPUS}")
    return float(value)


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
