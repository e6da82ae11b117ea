"""OpenSSL's ciphers where kernels can call them: many records are opened without the interpreter's lock.

In: a key. Out: addresses, of OpenSSL's functions and of a context that holds the key. Rules

- The library is the one that Python's own `ssl` works with: nothing is searched for or loaded. Where its functions
  cannot be had (a Python that hides them), there is none, and records are opened one by
  one by `cryptography`.
- What is opened has been authenticated: a kernel takes nothing that `EVP_DecryptFinal_ex` has not said yes to.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

import numpy as np

from kwire.captures.tls.suites import CHACHA, GCM

INIT, UPDATE, CONTROL, FINAL = range(4)
"""Places in `functions()`."""

_FUNCTIONS: Final = ("EVP_DecryptInit_ex", "EVP_DecryptUpdate", "EVP_CIPHER_CTX_ctrl", "EVP_DecryptFinal_ex")
_CIPHERS: Final = {
    (GCM, 16): "EVP_aes_128_gcm",
    (GCM, 32): "EVP_aes_256_gcm",
    (CHACHA, 32): "EVP_chacha20_poly1305",
}


@functools.cache
def _library() -> Any:
    """The library, its functions with their types; None: it cannot be had."""
    try:
        import _ssl

        library = ctypes.CDLL(_ssl.__file__)  # what it is linked with is found through it
        for name in (*_FUNCTIONS, *_CIPHERS.values(), "EVP_CIPHER_CTX_new", "EVP_CIPHER_CTX_free"):
            getattr(library, name)
    except (ImportError, AttributeError, OSError):
        return None
    for name in (*_CIPHERS.values(), "EVP_CIPHER_CTX_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.EVP_CIPHER_CTX_free.argtypes = [ctypes.c_void_p]
    library.EVP_CIPHER_CTX_free.restype = None
    library.EVP_DecryptInit_ex.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_char_p] * 2
    return library


@functools.cache
def functions() -> np.ndarray:
    """int64[4]: the addresses of OpenSSL's functions."""
    library = _library()
    return np.array([ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS], np.int64)


class Context:
    """A key of one direction, where OpenSSL keeps it; `address` is where."""

    def __init__(self, library: Any, address: int) -> None:
        self._free = library.EVP_CIPHER_CTX_free
        self.address = address

    def __del__(self) -> None:
        self._free(self.address)


def context(kind: str, key: bytes) -> Context | None:
    """A key made ready; None: this cipher, or the library, is not there."""
    library, name = _library(), _CIPHERS.get((kind, len(key)))
    if library is None or name is None:
        return None
    address = library.EVP_CIPHER_CTX_new()
    if not address:
        return None
    context = Context(library, address)
    cipher = getattr(library, name)()
    if not cipher or library.EVP_DecryptInit_ex(address, cipher, None, key, None) != 1:
        return None
    return context
