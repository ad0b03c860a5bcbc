"""Ports that stay free while nobody listens on them."""

import random
import socket
from contextlib import ExitStack

# Below those that the kernel gives to outgoing connections (32768 and above on Linux): while a broker is dead, no
# client's connection can sit on its port, and a client that retries cannot connect to itself.
_FIRST, _LAST = 20_000, 31_999


def free_ports(count: int) -> list[int]:
    """So many loopback TCP ports on which nobody listens now, in no order that another process would also choose."""
    chance = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = chance.randint(_FIRST, _LAST)
            attempt = held.enter_context(socket.socket())
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections that linger do not count
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
