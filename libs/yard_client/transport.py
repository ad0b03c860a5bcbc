"""How both clients connect: headers, proxies, keep-alive."""

import socket
import ssl
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

CONNECT_TIMEOUT_SECONDS = 10.0
# The streams of a gang are open at the same time.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=16)


def client_options(url: str, token: str) -> dict[str, Any]:
    """Arguments for httpx.Client and httpx.AsyncClient alike, but for the transport."""
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {token}", "user-agent": "gpuyard-client"},
        "trust_env": _is_proxied(url),
        "verify": _verify(url),
        "limits": _LIMITS,
    }


def transport_options(url: str) -> dict[str, Any] | None:
    """Arguments for the transport of a direct connection; None where a proxy of the environment stands before it."""
    if _is_proxied(url):
        return None
    return {"verify": _verify(url), "limits": _LIMITS, "socket_options": _keep_alive_options()}


def timeout(silence_seconds: float | None, longest_seconds: float = float("inf")) -> httpx.Timeout:
    """Seconds without a byte after which a call counts as broken, None for no bound; never more than the longest."""
    silence = min(silence_seconds if silence_seconds is not None else float("inf"), longest_seconds)
    connect = min(CONNECT_TIMEOUT_SECONDS, longest_seconds)
    return httpx.Timeout(silence if silence != float("inf") else None, connect=connect, pool=None)


def _keep_alive_options() -> list[tuple[int, int, int]]:
    """A following read may be silent for hours; probes notice a peer that vanished (after about 90 s)."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _verify(url: str) -> ssl.SSLContext | bool:
    """Plain HTTP never needs the certificate store, which takes long to load; this context trusts nobody."""
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _is_proxied(url: str) -> bool:
    """A proxy of the environment cannot reach this machine's own loopback, whatever the environment says."""
    parts = urlsplit(url)
    proxies = getproxies()
    if not (parts.scheme in proxies or "all" in proxies) or _is_loopback(url):
        return False
    return not proxy_bypass(parts.hostname or "")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
