"""Installed packages that extend kwire, as their metadata says: entry points of a group.

Nothing is imported of them here: `kwire.analyzer.findings.extensions` does. `KWIRE_EXTENSIONS=0` leaves all out.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kwire.analyzer.common.escapes import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

RULES: Final = "kwire.rules"
"""The group of modules that declare rules of findings."""

PAYLOADS: Final = "kwire.payloads"
"""The group of classes that decode keys and values."""

VARIABLE: Final = "KWIRE_EXTENSIONS"


@functools.cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group, in order of their packages' names."""
    if os.environ.get(VARIABLE) == "0" or not _may_have(group):
        return ()
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group=group), key=lambda entry: (package(entry), entry.name)))


def _may_have(group: str) -> bool:
    """Whether a package on the path may have entry points of a group: a file of entry points says its name, or packages
    are found in other ways than in folders. (To import `importlib.metadata` takes 40 ms, a tenth of a command's start,
    and few have an extension.)"""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return True
    folders = [Path(folder) for folder in sys.path]
    if any(folder.is_file() for folder in folders):
        return True
    files = (file for folder in folders for file in folder.glob("*[-.][iI][nN][fF][oO]/entry_points.txt"))
    return any(group.encode() in _content(file) for file in files)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # as `importlib.metadata` takes it


def package(entry: EntryPoint) -> str:
    """The name of the package that an entry point is from."""
    return printable(entry.dist.name if entry.dist is not None else entry.name)
