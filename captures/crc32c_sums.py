"""CRC-32C, by the library `crc32c`.

Its package also brings a command line and looks up its own version, which takes as long as 30 of our modules: what
computes is loaded alone, where it is where it was.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Sum: TypeAlias = Callable[..., int]
"""Of bytes, and the checksum of what came before them."""


def _library() -> Any:
    package = importlib.util.find_spec("crc32c") if "crc32c" not in sys.modules else None
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        finder = importlib.machinery.FileFinder(
            folder, (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
        )
        spec = finder.find_spec("_crc32c")
        if spec is not None and spec.loader is not None:
            library = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(library)
            if hasattr(library, "crc32c"):
                return library
    import crc32c

    return crc32c


crc32c: Final[Sum] = _library().crc32c
