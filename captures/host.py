"""The processor that this process runs on, in LLVM's words, and versions of what compiles for it.

Out: LLVM's triple, name of the processor and its features. Rule: LLVM says them, once for each processor and LLVM, and
what it said is kept by what the operating system says of the processor: loading LLVM for it alone is a tenth of a
start. Where the operating system says nothing, LLVM is asked each time.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from kwire.captures.cache import cached_by

_DESCRIBES: Final = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "Features",
)
"""Lines of Linux's /proc/cpuinfo that tell one kind of processor from another (x86, then ARM)."""

_ENOUGH_BYTES: Final = 8192
"""More than what it says of one processor; the file has that of each."""


class Host(NamedTuple):
    """triple, processor: LLVM's names; features: `+avx,-sse4a ...`, all that LLVM knows of."""

    triple: str
    processor: str
    features: str

    @property
    def has(self) -> frozenset[str]:
        """Features that this processor has and that the operating system enables."""
        return frozenset(name[1:] for name in self.features.split(",") if name.startswith("+"))


@functools.cache
def host() -> Host:
    """This machine."""
    description = _system_description()
    if description is None:
        return _said_by_llvm()
    words = cached_by("host", f"{sys.platform}\n{version('llvmlite')}\n{description}", lambda: list(_said_by_llvm()))
    triple, processor, features = map(str, words)
    return Host(triple, processor, features)


def _said_by_llvm() -> Host:
    import llvmlite.binding as llvm

    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def _system_description(path: str = "/proc/cpuinfo") -> str | None:
    """Return the description of the first processor; None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = file.read(_ENOUGH_BYTES).partition("\n\n")[0]
    except OSError:
        return None
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _DESCRIBES]
    names = {line.partition(":")[0].strip() for line in lines}
    return "\n".join(lines) if names & {"flags", "Features"} else None


@functools.cache
def version(package: str) -> str:
    """An installed package's (Numba's, llvmlite's), without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return "not installed"
    source = (Path(spec.origin).parent / "_version.py").read_text(encoding="utf-8")
    number = re.search(r"""["']?(?:version_)?version["']?\s*[:=]\s*["']([^"']+)["']""", source)
    return number[1] if number else "of no known version"
