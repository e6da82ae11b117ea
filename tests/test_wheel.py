"""The wheel: what is built from the sources holds all that the commands need, and works elsewhere.

It is built and installed without network, into a folder of its own, and run from another folder; of this project
nothing else is on Python's path. (proves: pyproject.toml, packages and their data)
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from confluent_kafka import Producer

from tests.shared import ROOT, SAMPLES
from tests.test_project import PACKAGES, tracked_files

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
SECONDS = 600
"""How long a command may take before a test gives up on it: kernels may have to be compiled."""

DOCUMENTS = ("*.md", "reports/samples/*")
"""For readers of the sources: not in the wheel, but for those that a package names as data."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git tracks, and nothing that happens to lie beside it."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for path in tracked_files():
        copy = sources / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={built}", str(sources)]
    done = subprocess.run(command, cwd=built, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = built.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore"]
    command = [sys.executable, "-m", "pip", "install", *options, f"--target={target}", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def kwire(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, run in another folder. `-S`: no path file leads to the sources."""
    paths = [str(installed), str(Path(numpy.__file__).parent.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-S", str(installed / "bin" / "kwire"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_wheel_holds_the_packages_and_their_data_and_no_tests(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ROOT).as_posix(): path for path in tracked_files()}
    wanted = {name for name in files if name == "kwire.py" or (name.partition("/")[0] in PACKAGES and "/" in name)}
    assert not held - wanted
    left = {name for name in wanted - held if not any(fnmatch.fnmatch(name, pattern) for pattern in DOCUMENTS)}
    assert not left, "add them to package-data in pyproject.toml"


def test_the_installed_packages_are_used(installed: Path, tmp_path: Path) -> None:
    code = f"import sys; print([__import__(name).__file__ for name in {PACKAGES}])"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count(str(installed)) == len(PACKAGES)


def test_captures_are_analyzed_shown_and_reported(installed: Path, tmp_path: Path) -> None:
    done = kwire(installed, tmp_path, "analyze", str(CAPTURE), "-o", "dataset")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dataset" / "exchanges").is_dir()
    shown = kwire(installed, tmp_path, "show", str(CAPTURE))
    assert shown.returncode == 0, shown.stderr
    assert {"ApiVersions", "Produce", "Fetch"} <= set(shown.stdout.split())
    reported = kwire(installed, tmp_path, "report", "dataset", "-o", "report", "--format", "json")
    assert reported.returncode == 0, reported.stderr
    assert json.loads((tmp_path / "report").read_text())


def test_a_replay_is_planned_at_a_cluster(installed: Path, tmp_path: Path) -> None:
    """librdkafka's mock cluster."""
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
    address = f"{broker.host}:{broker.port}"
    done = kwire(installed, tmp_path, "replay", str(CAPTURE), "--to", address, "--dry-run", "-o", "run")
    assert done.returncode == 0, done.stderr
    assert "Produce" in done.stdout
