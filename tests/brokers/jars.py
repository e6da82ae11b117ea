"""An Apache Kafka broker's published jars, fetched once into a cache.

In: a Kafka version. Out: the folder that holds its jars (14 to 56 MB), copied by Maven from whatever registry Maven is
set up with. Rule: a folder without its `.ok` mark is not used; two test runs at once wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEWEST: Final = "4.3.1"
"""Of 4.4.0 the registry lacks kafka-tools, which formats a broker's storage."""
LAST_OF_3: Final = "3.9.2"
WITH_ZOOKEEPER: Final = "2.8.2"
VERSIONS: Final = (NEWEST, LAST_OF_3, WITH_ZOOKEEPER)

OLDEST_JAVA: Final = 17
HOW_TO_GET: Final = "on Debian: apt install default-jre-headless maven"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FETCH_SECONDS: Final = 600

# fmt: off
_LOGGING: Final = {
    "4": (
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
        ("org.apache.logging.log4j", "log4j-core", "2.24.3"),
    ),
    "3": (("ch.qos.reload4j", "reload4j", "1.2.25"), ("org.slf4j", "slf4j-reload4j", "1.7.36")),
    "2": (("log4j", "log4j", "1.2.17"), ("org.slf4j", "slf4j-log4j12", "1.7.30")),
}
# fmt: on
"""What a broker's own jars lack to write a log, by major version."""


class Unavailable(Exception):
    """Brokers cannot run on this machine; the message says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that brokers can use, and its tool for keys and certificates."""

    java: str
    keytool: str


def find_java() -> Java:
    """JAVA_HOME's, else the PATH's; raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        raise Unavailable(f"no Java (version {OLDEST_JAVA} or newer); {HOW_TO_GET}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise Unavailable(f"{java} is older than Java {OLDEST_JAVA}; {HOW_TO_GET}")
    return Java(java, str(Path(os.path.realpath(java)).parent / "keytool"))


def cache_folder() -> Path:
    """`KWIRE_BROKERS`, else `brokers` in KWIRE_CACHE_DIR or in the user's cache of kwire."""
    chosen = os.environ.get("KWIRE_BROKERS")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("KWIRE_CACHE_DIR")
    if cache:
        return Path(cache, "brokers")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kwire", "brokers")


def fetch(version: str) -> Path:
    """The folder of a version's jars, fetched now if it is not there yet; raises Unavailable."""
    return _fetch(version, "kafka", ("kafka_2.13", "kafka-tools"))


def fetch_more(version: str, artifact: str) -> Path:
    """The folder of a program of Kafka that a broker lacks, with all that it needs."""
    return _fetch(version, artifact, (artifact,))


def _fetch(version: str, name: str, artifacts: tuple[str, ...]) -> Path:
    folder = cache_folder() / f"{name}-{version}"
    with fetching(folder) as missing:
        if missing:
            _copy_jars(version, folder, artifacts)
    return folder / "lib"


@contextlib.contextmanager
def fetching(folder: Path) -> Iterator[bool]:
    """Whether a folder of the cache has yet to be filled, by this process alone; it counts as filled afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (folder / ".ok").exists()
        (folder / ".ok").touch()


def _copy_jars(version: str, folder: Path, artifacts: tuple[str, ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"no Maven (mvn) to fetch Kafka {version} with; {HOW_TO_GET}")
    wanted = [("org.apache.kafka", artifact, version) for artifact in artifacts]
    wanted += _LOGGING[version.partition(".")[0]]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{release}</version></dependency>"
        for group, artifact, release in wanted
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>kwire</groupId><artifactId>broker</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    command = [maven, "-q", "-B", "-f", str(folder / "pom.xml"), _COPY, f"-DoutputDirectory={folder / 'lib'}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
    )
    if done.returncode:
        raise Unavailable(f"Maven could not fetch Kafka {version}: " + (done.stdout + done.stderr).strip()[-500:])
