"""How kwire compiles its kernels: one decorator, one cache folder a machine.

A *kernel* is a Numba function from arrays to arrays: no I/O, no Python objects, every load widened and every
bound checked before the read. Use `@kernel` on what Python calls and `@inline` on small helpers that other
kernels call.

The compiled code is kept on disk in a folder named by a hash of every kernel source in the project: Numba itself
does not notice an edit of a function that is called from another module, and would run the stale one.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from captures.cache import cache_root

_PACKAGES = ("captures", "analyzer")
_ROOT = Path(__file__).resolve().parent.parent


def _kernel_sources() -> list[Path]:
    """The project's files that hold kernels (they import this module), in a fixed order."""
    found = []
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).glob("*.py")):
            if b"captures.kernels import" in path.read_bytes():
                found.append(path)
    return found


def cache_folder() -> Path:
    """The folder that holds this version's compiled kernels. Bounds-checked builds get one of their own, because
    Numba ignores `NUMBA_BOUNDSCHECK` where a cache is warm."""
    digest = hashlib.sha256(sys.version.encode())
    for path in _kernel_sources():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    bounds = "-bounds" if os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0") else ""
    return cache_root() / "kernels" / (digest.hexdigest()[:16] + bounds)


CACHE_FOLDER = cache_folder()
if "NUMBA_CACHE_DIR" not in os.environ:
    # Numba reads the variable when it is imported; setting it afterwards would be too late.
    os.environ["NUMBA_CACHE_DIR"] = str(CACHE_FOLDER)

import numba  # noqa: E402  (after the cache folder is set)
import numpy  # noqa: E402

WARM = CACHE_FOLDER.is_dir() and any(CACHE_FOLDER.iterdir())


# No reference counts: kernels get their arrays and never allocate. Division as NumPy does it: no exceptions to raise.
# (Two of the options are Numba's own and not in its annotations, hence `Any`.)
_njit: Any = numba.njit
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, without the GIL, and keep the result on disk."""
    return _njit(function, cache=True, **_OPTIONS)


def inline(function: Callable[..., Any]) -> Any:
    """For helpers that kernels call: compiled into their callers.

    Numba hands an array to a function as seven values, so a call with the tables of a stage costs hundreds of moves:
    more than what most helpers do. Never call one from Python: it has no entry for that, and would crash
    (`NUMBA_DISABLE_JIT=1` runs all of them as plain Python).
    """
    return _njit(function, no_cpython_wrapper=True, forceinline=True, **_OPTIONS)


def shared(function: Callable[..., Any]) -> Any:
    """Like `inline`, for larger helpers with several callers: one copy, called."""
    return _njit(function, no_cpython_wrapper=True, **_OPTIONS)


@inline
def copy_bytes(into: Any, at: Any, source: Any, start: Any, count: Any) -> None:
    """into[at:at + count] = source[start:start + count]; the two must not overlap. Unsigned indices: with signed ones
    Numba minds negative ones at every byte, and the loop is ten times slower than a copy."""
    to = numpy.uint64(at)
    origin = numpy.uint64(start)
    for i in range(numpy.uint64(count)):
        into[to + i] = source[origin + i]
