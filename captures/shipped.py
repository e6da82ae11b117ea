"""The shared library of compiled kernels that came with the installation, if it fits this process, or why it does not.

`make wheel` (tools/wheel.py) puts it beside this file: `object_code/made.json`, which describes it, and a library for
each kind of processor. In: a hash of the sources that are installed. Out: the library to call kernels from, or a reason
in words. Rules: the sources, the operating system and the processor have to be those that it was made for, and no
switch of Numba may be set, else kernels are compiled as where nothing came along; nobody may write to it who could not
write to the code beside it just as well. The library knows nothing of Python, NumPy or Numba: any version will do.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kwire.captures.cache import as_safe_as
from kwire.captures.native import Entry, Linked, exported

FOLDER: Final = Path(__file__).resolve().parent / "object_code"
DESCRIPTION: Final = "made.json"

_NO_SWITCHES: Final = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"}
"""Variables of Numba that change no code that it makes."""

_V2: Final = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3: Final = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
LEVELS: Final[Mapping[str, tuple[str, ...]]] = {"x86-64-v3": _V3, "x86-64-v2": _V2}
"""Kinds of processors that libraries are made for, best first: by LLVM's name of each, what it has beyond the first
x86-64, by Linux's names (x86-64 psABI, "Micro-Architecture Levels"; Linux: arch/x86/include/asm/cpufeatures.h)."""

_ENOUGH_BYTES: Final = 8192
"""More than what /proc/cpuinfo says of one processor; the file has that of each."""


class Library:
    """Kernels in a shared library, by name."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        """Raises OSError if the system cannot load it."""
        self.target = path.stem
        self._library = ctypes.CDLL(str(path))
        self._entries = entries

    def kernel(self, name: str) -> Linked | None:
        """Return a kernel by its file name; None if the library has none for such arguments."""
        content = self._entries.get(name)
        return exported(self._library, Entry.of(content)) if content is not None else None


class Shipped(NamedTuple):
    """library: the one that fits, None where none does; reason: why, empty where nothing came along."""

    library: Library | None
    reason: str = ""


def switches() -> list[str]:
    """The variables set that change what Numba makes."""
    return sorted(name for name in os.environ if name.startswith("NUMBA_") and name not in _NO_SWITCHES)


def system() -> str:
    """Operating system and architecture."""
    return f"{sys.platform} {os.uname().machine if hasattr(os, 'uname') else ''}".strip()


def features(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """Features that this processor has and that the operating system enables, by Linux's names; elsewhere none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_ENOUGH_BYTES).partition("\n\n")[0].splitlines()
    except OSError:
        return frozenset()
    parts = (line.partition(":") for line in lines)
    return frozenset(word for name, _, words in parts if name.strip() == "flags" for word in words.split())


def conditions(sources: str) -> dict[str, str]:
    """Return the conditions of the library beside the processor, for sources with this hash."""
    return {"sources": sources, "platform": system()}


def description(
    sources: str, targets: Mapping[str, Iterable[str]], kernels: Mapping[str, Entry] | None = None
) -> bytes:
    """The content of `made.json`. `targets`: for each library, best first, what a processor has to have; `kernels`: how
    each is called, by its file name."""
    needed = {name: sorted(features) for name, features in targets.items()}
    return json.dumps({**conditions(sources), "targets": needed, "kernels": kernels or {}}).encode()


def chosen(sources: str, folder: Path = FOLDER) -> Shipped:
    """Choose the library to load from, for installed sources with this hash."""
    if not folder.is_dir():
        return Shipped(None)
    if set_here := switches():
        return Shipped(None, f"{set_here[0]} is set")
    try:
        check_safe(folder / DESCRIPTION)
        content: dict[str, Any] = json.loads((folder / DESCRIPTION).read_bytes())
        targets = {str(name): frozenset(map(str, needed)) for name, needed in content["targets"].items()}
        wanted = {name: str(content[name]) for name in conditions(sources)}
        kernels = dict(content["kernels"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        return Shipped(None, str(failure) if isinstance(failure, PermissionError) else f"{DESCRIPTION} is damaged")
    for name, here in conditions(sources).items():
        if wanted[name] != here:
            reason = "the sources were changed" if name == "sources" else f"for {name} {wanted[name]}, this is {here}"
            return Shipped(None, reason)
    processor = features()
    for name, needed in targets.items():
        if needed <= processor and Path(name).name == name:
            path = folder / f"{name}.so"
            try:
                check_safe(path)
                return Shipped(Library(path, kernels))
            except OSError as failure:
                return Shipped(None, str(failure))
    return Shipped(None, f"this processor is none of {', '.join(targets)}")


def check_safe(path: Path) -> None:
    """Raise OSError if a file is missing, or if more people may write to it than to this very code."""
    for place in (path, path.parent):
        if not as_safe_as(place, Path(__file__)):
            raise PermissionError(f"{str(path)!a} may be written to by others than {__package__}")
