"""Java reads the certificates that were written for it."""

import re
import subprocess
from pathlib import Path

import certifi

from support.java_trust import java_trust_options
from support.kafka_programs import kafka_programs


def test_java_finds_every_certificate_of_a_pem_file(tmp_path: Path) -> None:
    certificates = Path(certifi.where())
    store = tmp_path / "certificates.jks"
    options = java_trust_options(certificates, store)
    assert options[0] == f"-Djavax.net.ssl.trustStore={store}"
    keytool = kafka_programs().java.with_name("keytool")
    said = subprocess.run(
        [str(keytool), "-J-Duser.language=en", "-list", "-keystore", str(store), "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = certificates.read_text().count("BEGIN CERTIFICATE")
    assert re.findall(r"contains (\d+) entries", said) == [str(expected)]
    assert said.count("trustedCertEntry") == expected
