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
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def _cache_root() -> Path:
    """A folder we may write: `KWIRE_CACHE_DIR`, else the user's cache folder, else a temporary one."""
    chosen = os.environ.get("KWIRE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = Path(home) / "kwire"
    try:
        user.mkdir(parents=True, exist_ok=True)
        if os.access(user, os.W_OK):
            return user
    except OSError:
        pass
    return Path(tempfile.gettempdir()) / f"kwire-{os.getuid() if hasattr(os, 'getuid') else 0}"


def cache_folder() -> Path:
    """The folder that holds this version's compiled kernels. Bounds-checked builds get one of their own, because
    Numba ignores `NUMBA_BOUNDSCHECK` where a cache is warm."""
    digest = hashlib.sha256(sys.version.encode())
    for path in _kernel_sources():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    bounds = "-bounds" if os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0") else ""
    return _cache_root() / "kernels" / (digest.hexdigest()[:16] + bounds)


CACHE_FOLDER = cache_folder()
if "NUMBA_CACHE_DIR" not in os.environ:
    # Numba reads the variable when it is imported; setting it afterwards would be too late.
    os.environ["NUMBA_CACHE_DIR"] = str(CACHE_FOLDER)

import numba  # noqa: E402  (after the cache folder is set)

WARM = CACHE_FOLDER.is_dir() and any(CACHE_FOLDER.iterdir())


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, without the GIL, and keep the result on disk."""
    return numba.njit(function, cache=True, nogil=True, _nrt=False, error_model="numpy", no_cfunc_wrapper=True)


def inline(function: Callable[..., Any]) -> Any:
    """Like `kernel`, for small helpers: inlined by LLVM into the kernels that call them."""
    return numba.njit(function, nogil=True, _nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
