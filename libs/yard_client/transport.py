"""How both clients connect: headers, proxies, keep-alive."""

import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx

CONNECT_TIMEOUT_SECONDS = 10.0


def client_options(url: str, token: str) -> dict[str, Any]:
    """Arguments for httpx.Client and httpx.AsyncClient alike."""
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {token}", "user-agent": "gpuyard-client"},
        # A proxy of the environment cannot reach this machine's own loopback.
        "trust_env": not _is_loopback(url),
        # Streams of a gang are open at the same time.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=16),
    }


def timeout(silence_seconds: float | None, longest_seconds: float = float("inf")) -> httpx.Timeout:
    """Seconds without a byte after which a call counts as broken, None for no bound; never more than the longest."""
    silence = min(silence_seconds if silence_seconds is not None else float("inf"), longest_seconds)
    connect = min(CONNECT_TIMEOUT_SECONDS, longest_seconds)
    return httpx.Timeout(silence if silence != float("inf") else None, connect=connect, pool=None)


def keep_alive_options() -> list[tuple[int, int, int]]:
    """A following read may be silent for hours; probes notice a peer that vanished (after about 90 s)."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
