"""Installed packages that extend kwire, as their metadata says: entry points of a group.

Nothing is imported of them here: `kwire.analyzer.findings.extensions` does. `KWIRE_EXTENSIONS=0` leaves all out.
"""

from __future__ import annotations

import functools
import os
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
    if os.environ.get(VARIABLE) == "0":
        return ()
    from importlib.metadata import entry_points  # 30 ms, which commands without findings need not spend

    return tuple(sorted(entry_points(group=group), key=lambda entry: (package(entry), entry.name)))


def package(entry: EntryPoint) -> str:
    """The name of the package that an entry point is from."""
    return printable(entry.dist.name if entry.dist is not None else entry.name)
