"""Object code that came with the installation: which of it fits this process, or why none does.

`make wheel` (tools/wheel.py) puts it beside this file: `object_code/made.json`, which says what it was made from and
with, and a folder of kernels for each kind of processor. In: a hash of the sources that are installed. Out: the folder
to load from, or a reason in words. Rules: sources, Python, Numba, llvmlite, operating system and processor all have to
be those that it was made for, and no switch of Numba may be set, else there is none, and kernels are compiled as where
nothing came along; nobody may write to it who could not write to the code beside it just as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.captures.cache import as_safe_as
from kwire.captures.host import host, version

FOLDER: Final = Path(__file__).resolve().parent / "object_code"
DESCRIPTION: Final = "made.json"

_NO_SWITCHES: Final = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"}
"""Variables of Numba that change no code that it makes."""

_V2: Final = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3: Final = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
LEVELS: Final[Mapping[str, tuple[str, ...]]] = {"x86-64-v3": _V3, "x86-64-v2": _V2}
"""Kinds of processors that object code is made for, best first: by LLVM's name of each, what it has beyond the first
x86-64, by LLVM's names (x86-64 psABI, "Micro-Architecture Levels")."""


class Shipped(NamedTuple):
    """folder: of the object code that fits, None where none does; reason: why, empty where nothing came along."""

    folder: Path | None
    reason: str = ""


def switches() -> list[str]:
    """The variables set that change what Numba makes."""
    return sorted(name for name in os.environ if name.startswith("NUMBA_") and name not in _NO_SWITCHES)


def python() -> str:
    """Return the versions that object code depends on: Python's byte code, which Numba compiles, differs by minor
    version."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def numba_version() -> str:
    """The installed Numba's, without importing it."""
    return version("numba")


def platform() -> str:
    """Operating system and architecture."""
    return f"{sys.platform} {host().triple.partition('-')[0]}"


def features() -> frozenset[str]:
    """Features that this processor has and that the operating system enables, by LLVM's names."""
    return host().has


def conditions(sources: str) -> dict[str, str]:
    """Return the conditions of object code beside the processor, for sources with this hash."""
    return {
        "sources": sources,
        "python": python(),
        "numba": numba_version(),
        "llvmlite": version("llvmlite"),
        "platform": platform(),
    }


def description(sources: str, targets: Mapping[str, Iterable[str]]) -> bytes:
    """The content of `made.json`. `targets`: for each folder, best first, what a processor has to have."""
    content = {**conditions(sources), "targets": {name: sorted(needed) for name, needed in targets.items()}}
    return json.dumps(content, indent=1).encode()


def chosen(sources: str, folder: Path = FOLDER) -> Shipped:
    """Choose the folder to load from, for installed sources with this hash."""
    if not folder.is_dir():
        return Shipped(None)
    if set_here := switches():
        return Shipped(None, f"{set_here[0]} is set")
    try:
        content: dict[str, Any] = json.loads(content_of(folder / DESCRIPTION))
        targets = {str(name): frozenset(map(str, needed)) for name, needed in content["targets"].items()}
        wanted = {name: str(content[name]) for name in conditions(sources)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        return Shipped(None, str(failure) if isinstance(failure, PermissionError) else f"{DESCRIPTION} is damaged")
    for name, here in conditions(sources).items():
        if wanted[name] != here:
            reason = "the sources were changed" if name == "sources" else f"for {name} {wanted[name]}, this is {here}"
            return Shipped(None, reason)
    for name, needed in targets.items():
        if needed <= features() and Path(name).name == name:
            return Shipped(folder / name)
    return Shipped(None, f"this processor is none of {', '.join(targets)}")


def content_of(path: Path) -> bytes:
    """A file of it. Raises OSError, also where more people may write to it than to this very code."""
    for place in (path, path.parent):
        if not as_safe_as(place, Path(__file__)):
            raise PermissionError(f"{str(path)!a} may be written to by others than {__package__}")
    return path.read_bytes()
