"""Clients of the keeper: newline-delimited JSON over one Unix stream socket that only its owner may open."""

import json
import os
import select
import socket
from contextlib import suppress

MAX_LINE_BYTES = 16 << 20
MAX_UNREAD_BYTES = 16 << 20
MAX_PATH_BYTES = 100
PROTOCOL_VERSION = 1


def listen(path: str) -> socket.socket:
    """A listening socket at the path; one that a dead keeper left is replaced. The caller holds the keeper's lock."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mask = os.umask(0o177)
    try:
        # A socket's address holds 107 bytes; through the open folder any path fits.
        listener.bind(
            path if len(os.fsencode(path)) <= MAX_PATH_BYTES else f"/proc/self/fd/{folder}/{os.path.basename(path)}"
        )
    finally:
        os.umask(mask)
        os.close(folder)
    listener.listen(64)
    listener.setblocking(False)
    return listener


class Client:
    """One connection. What it does not read in time costs it the connection: it lists again when it comes back."""

    def __init__(self, connection: socket.socket, poller: select.poll) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self._poller = poller
        self._received = bytearray()
        self._unsent = bytearray()
        poller.register(connection, select.POLLIN)

    def receive(self) -> list[dict]:
        """The requests that came in whole. Closes itself at the end of the stream and on what is not a request."""
        try:
            data = self.connection.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        self._received += data
        if b"\n" not in data:
            if len(self._received) > MAX_LINE_BYTES:
                self.close()
            return []
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        requests: list[dict] = []
        for line in lines:
            try:
                request = json.loads(line)
            except ValueError:
                request = None
            if not isinstance(request, dict):
                self.close()
                break
            requests.append(request)
        return requests

    def send(self, message: dict) -> None:
        if self.closed:
            return
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = self.connection.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            if len(self._unsent) > MAX_UNREAD_BYTES:
                self.close()
                return
        except OSError:
            self.close()
            return
        self._poller.modify(self.connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._poller.unregister(self.connection)
            self.connection.close()


def launch_of(request: dict) -> tuple[list[str], dict[str, str], str | None, str] | str:
    """(argv, env, workdir, output path) of a start request, or what is wrong with it."""
    argv, env, workdir, output = (request.get(name) for name in ("argv", "env", "workdir", "output_path"))
    if not isinstance(argv, list) or not argv or not all(_is_text(word) for word in argv) or not argv[0]:
        return "argv must be a list of texts without NUL that begins with a program"
    if not isinstance(env, dict) or not all(_is_text(word) for pair in env.items() for word in pair):
        return "env must map texts without NUL to such"
    if any(not name or "=" in name for name in env):
        return "names in env must not be empty or hold '='"
    if workdir is not None and not _is_text(workdir):
        return "workdir must be a text without NUL, or null"
    if not _is_text(output) or not os.path.isabs(output):
        return "output_path must be an absolute path"
    return argv, env, workdir, output


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value
