"""Where kwire keeps what it can make again: compiled kernels, the compiled layouts, Spark's class archive."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def cache_root() -> Path:
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
    return _temporary()


def _temporary() -> Path:
    """A folder of ours for temporary files. What is kept there is run as code, so nobody else may write to it: where
    somebody has put something in its place, it is a new one for this process."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    shared = Path(tempfile.gettempdir()) / f"kwire-{user}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()
        if status.st_uid == user and not status.st_mode & 0o022:
            return shared
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="kwire-"))


def replace(path: Path, content: bytes) -> None:
    """Write a file of the cache in one step: other processes may do the same at the same time. A folder that cannot be
    written costs making it again, no more."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with open(number, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def sealed(content: bytes) -> bytes:
    """Content with a checksum before it, so that a file that was cut or damaged is told from a whole one."""
    return hashlib.sha256(content).digest() + content


def opened(data: bytes) -> memoryview:
    """The content again. Raises ValueError where it is not whole."""
    content = memoryview(data)[32:]
    if hashlib.sha256(content).digest() != data[:32]:
        raise ValueError("damaged")
    return content


@functools.cache
def _digest(sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kept(name: str, sources: Iterable[Path], make: Callable[[], T]) -> T:
    """What `make` returns, made once a machine and kept until one of the files it depends on changes.

    It is pickled: that is code to whoever reads it, as compiled kernels are, and `cache_root` is ours alone.
    """
    path = cache_root() / "data" / f"{name}.{_digest(tuple(sources))}"
    # Whatever is wrong with the file, it can be made again. (Unpickling raises nearly anything.)
    with contextlib.suppress(Exception):
        found: T = pickle.loads(opened(path.read_bytes()))
        return found
    made = make()
    replace(path, sealed(pickle.dumps(made, pickle.HIGHEST_PROTOCOL)))
    return made
