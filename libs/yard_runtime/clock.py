"""The real clock and the real source of ids. Services get them as arguments; simulation passes others."""

import asyncio
import secrets
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
"""Two digits at a time: ids are made for every event, and division of large integers is what they cost."""


class SystemClock:
    """Implements `yard_store.ports.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemIds:
    """Implements `yard_store.ports.Ids`: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32.

    The layout of a ULID, so ids sort by the time they were made.
    """

    def __init__(self, clock: SystemClock | None = None) -> None:
        self._clock = clock or SystemClock()

    def new(self, prefix: str) -> str:
        number = int(self._clock.now().timestamp() * 1000) << 80 | secrets.randbits(80)
        return f"{prefix}-{encode_base32(number, 26)}"


def encode_base32(number: int, length: int) -> str:
    """The lowest `length` digits; `length` is even."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * length - 10, -1, -10)])
