"""Where tests find real captures: `captures/samples` (always) and `../shared/captures` (skipped loudly when absent)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "captures" / "samples"
SHARED = Path(os.environ.get("KWIRE_SHARED_CAPTURES") or os.path.normpath(ROOT / ".." / "shared" / "captures"))
# A capture's file names: whole, compressed, or one of a rotated series.
PATTERNS = ("capture*.pcap", "capture*.pcapng", "capture*.pcap.gz", "capture*.pcapng.gz")

KWIRE = (sys.executable, "-c", "from kwire.analyzer.cli.start import command; command()")
"""The installed command as this interpreter runs it, wherever its script was put: a process of its own, which loads
less than one that imports kwire."""


def shared_present() -> bool:
    """Whether the captures beside the repository are there."""
    return SHARED.is_dir()


def capture_files(folder: Path) -> list[Path]:
    """The capture files of one capture folder in time order (rotated ones are numbered)."""
    paths = sorted(path for pattern in PATTERNS for path in folder.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"no capture file in {folder}")
    return paths


def sample_folders() -> list[Path]:
    """Every shipped sample's folder."""
    return sorted(path.parent for path in SAMPLES.glob("*/truth.json"))


def shared_folders() -> list[Path]:
    """Every shared capture's folder; empty when they are absent (use `shared_folder` to skip loudly)."""
    return sorted(path.parent for path in SHARED.glob("*/truth.json")) if shared_present() else []


def shared_folder(name: str) -> Path:
    """The folder of one shared capture, or a skip that says what is missing and how to have it."""
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"shared capture {name} is absent: looked in {SHARED}; set KWIRE_SHARED_CAPTURES to its folder")
    return folder


def real_folder(name: str) -> Path:
    """The folder of a capture that is a shipped sample or else a shared one."""
    sample = SAMPLES / name
    return sample if sample.is_dir() else shared_folder(name)


def case_capture(name: str) -> Path:
    """The capture of one case beside the shared captures (`wire/` or `incidents/`), or a skip that says what is
    missing."""
    path = SHARED.parent / "cases" / name
    if not path.is_file():
        pytest.skip(f"case {name} is absent: looked in {SHARED.parent / 'cases'}")
    return path
