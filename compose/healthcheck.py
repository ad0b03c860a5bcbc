"""Is what runs in this container ready? `python3 -I -S healthcheck.py`; YARD_LISTEN says where it listens.

Exit code 0 when /readyz answers 200; else 1, with one line that says why. Standard library without its heavy parts: an
engine runs this every few seconds in every container.
"""

import os
import socket
import sys

TIMEOUT_SECONDS = 2.5
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


def ask(listen: str) -> tuple[int, str]:
    """Status and body of GET /readyz at `unix:/path` or `host:port`. Raises OSError or ValueError."""
    if listen.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(listen.removeprefix("unix:"))
    else:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        connection = socket.create_connection((ANY_ADDRESS.get(host, host), int(port)), TIMEOUT_SECONDS)
    with connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n")
        answer = bytearray()
        while part := connection.recv(65536):
            answer += part
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode(errors="replace")


def main() -> int:
    listen = os.environ.get("YARD_LISTEN", "")
    try:
        status, body = ask(listen)
    except (OSError, ValueError, IndexError) as error:
        print(f"no answer at {listen!r}: {error}")
        return 1
    print(f"{status} {body[:500]}")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
