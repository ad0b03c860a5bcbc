"""Java looks for certificates in a store of its own and ignores `SSL_CERT_FILE`, which Python, curl and git follow."""

import hashlib
import re
import ssl
import struct
from pathlib import Path

_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # Java's own default: it protects nothing, it is part of the checksum


def java_trust_options(certificates: Path, store: Path) -> list[str]:
    """Write the certificates of a PEM file to `store`, in the format JKS, and return the JVM options that use it."""
    store.write_bytes(_jks([ssl.PEM_cert_to_DER_cert(each) for each in _pem_blocks(certificates.read_text())]))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _pem_blocks(text: str) -> list[str]:
    return re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", text, re.DOTALL)


def _jks(certificates: list[bytes]) -> bytes:
    """`magic version count`, per certificate `tag alias milliseconds type length bytes`, and a salted SHA-1."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _CERTIFICATE) + _text(f"certificate-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
