"""Apache Kafka's programs as jars: fetched once by Maven from `tests/kafka/pom.xml`, kept in a folder git ignores."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.java_trust import java_trust_options

_ROOT = Path(__file__).parents[2]
_PROJECT = _ROOT / "tests" / "kafka"
_CACHE = _ROOT / ".cache" / "kafka"
_OLDEST_JAVA = 17
_FETCH_LIMIT_SECONDS = 600

# A test's broker lives for seconds: the second compiler never pays, and one collector thread is enough. The heap grows
# only as far as it is used.
_JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


class KafkaUnavailable(Exception):
    """There is no Kafka to test with. The message says what to install or which log says why."""


@dataclass(frozen=True, slots=True)
class KafkaPrograms:
    """The command lines of Kafka's programs on this machine."""

    java: Path
    jars: Path
    class_archive: Path
    """Kafka's classes as the JVM lays them out in memory: with it a broker starts with half the work. May be missing,
    and a JVM that finds it made by another one does without."""

    def command(self, main_class: str, arguments: Sequence[str], jvm_options: Sequence[str] = ()) -> list[str]:
        """The command line of one of Kafka's main classes; `jvm_options` overrule those of short-lived brokers."""
        return [
            str(self.java),
            *_JVM_OPTIONS,
            *([f"-XX:SharedArchiveFile={self.class_archive}"] if self.class_archive.exists() else []),
            *jvm_options,
            f"-Dlog4j2.configurationFile={_PROJECT / 'log4j2.properties'}",
            "-cp",
            f"{self.jars}/*",
            main_class,
            *arguments,
        ]


def kafka_programs() -> KafkaPrograms:
    """Java and the jars, fetched where they are missing. Processes that come at the same time take turns.

    Raises `KafkaUnavailable`, saying what to install.
    """
    java, version = _java()
    pom = (_PROJECT / "pom.xml").read_bytes()
    jars = _CACHE / f"jars-{hashlib.sha256(pom).hexdigest()[:12]}"
    if not jars.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(_CACHE / "fetch.lock"):
            if not jars.is_dir():
                _fetch(jars)
    of_version = hashlib.sha256(version.encode()).hexdigest()[:12]
    return KafkaPrograms(java=java, jars=jars, class_archive=jars / f"classes-{of_version}.jsa")


def _java() -> tuple[Path, str]:
    """The program, and all it says of its version."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise KafkaUnavailable(f"Tests on Kafka need Java {_OLDEST_JAVA} or newer, and there is no `java` {_ADVICE}")
    said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise KafkaUnavailable(
            f"Tests on Kafka need Java {_OLDEST_JAVA} or newer; {found} says: {said.strip()} {_ADVICE}"
        )
    return Path(found), said


_ADVICE = (
    "(on Debian and Ubuntu: apt-get install openjdk-17-jre-headless maven). "
    "Or start a container engine, or put the address of a Kafka of your own into YARD_TEST_KAFKA."
)


def _fetch(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(f"Tests on Kafka fetch its jars with Maven, and there is no `mvn` {_ADVICE}")
    half = jars.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    command = [maven, "-q", "-B", "-C", "-f", str(_PROJECT / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={half}"]
    environment = dict(os.environ)
    certificates = Path(environment.get("SSL_CERT_FILE", ""))
    if certificates.is_file():
        trust = java_trust_options(certificates, _CACHE / "certificates.jks")
        environment["MAVEN_OPTS"] = " ".join([*trust, environment.get("MAVEN_OPTS", "")])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_FETCH_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable(f"Maven did not fetch Kafka's jars in {_FETCH_LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        raise KafkaUnavailable(f"Maven could not fetch Kafka's jars:\n{(done.stdout + done.stderr)[-2000:]}")
    half.rename(jars)  # only a whole folder has the name that others look for


@contextmanager
def _one_at_a_time(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
