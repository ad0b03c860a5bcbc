"""Whether a broker serves, asked in Kafka's own protocol: a Metadata request names the brokers that are not fenced."""

import socket
import struct

_METADATA = 3
_VERSION = 1
_NO_TOPICS = 0
_ANSWER_LIMIT_SECONDS = 5.0


def live_brokers(port: int) -> frozenset[int]:
    """The ids of the brokers that the broker on this loopback port calls live; empty where it does not answer."""
    client = b"yard-tests"
    request = struct.pack(f">hhih{len(client)}si", _METADATA, _VERSION, 1, len(client), client, _NO_TOPICS)
    try:
        with socket.create_connection(("127.0.0.1", port), _ANSWER_LIMIT_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            return _broker_ids(_exactly(connection, size))
    except OSError:
        return frozenset()


def _broker_ids(answer: bytes) -> frozenset[int]:
    """`correlation_id brokers: [node_id host port rack?] …`, integers of 32 bits, strings after their 16-bit length."""
    _, count = struct.unpack_from(">ii", answer)
    at = 8
    found: set[int] = set()
    for _ in range(count):
        node, host_length = struct.unpack_from(">ih", answer, at)
        found.add(node)
        at += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(rack_length, 0)
    return frozenset(found)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = connection.recv(size)
        if not part:
            raise ConnectionResetError("the broker closed the connection in the middle of an answer")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
